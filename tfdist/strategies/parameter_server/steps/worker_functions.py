"""The functions that asynchronous steps run on a worker.

execution = Execution(strategy, train_step, iterator_spec, packs=True)
steps, (seconds, logs) = execution.make(iterator, limit=10)    # on the worker that calls this
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.strategies.parameter_server.steps.tracing import converting, scheduled
from tfdist.strategies.parameter_server.transfers.packed_step import packed_transfers


class OneBatch:
    """An iterator over a single batch, the argument of a step."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __next__(self) -> Any:
        return self._batch


class Execution:
    """Several steps at once, which end early if their iterator is exhausted.

    Repeated data can be exhausted too, because a shard can be empty.

    Args:
      strategy: the TensorFlow strategy.
      step: takes an iterator and returns a nest of numeric tensors of static shapes, the logs.
      iterator_spec: the `tf.TypeSpec` of the iterators.
      packs: whether the transfers of each step are packed; see `packed_transfers`.

    Attributes:
      function: the concrete function; takes an iterator and the maximum number of steps, int32,
        shape []. It returns one tensor, float64, shape [elements], because each tensor that the
        chief fetches costs a message. `unpacked` splits it.
    """

    def __init__(
        self, strategy: Any, step: Callable[[Any], Any], iterator_spec: Any, *, packs: bool
    ) -> None:
        self._step = step
        self._packs = packs
        self._logs: Any = None
        with scheduled(strategy):
            steps = tf.function(tf.autograph.experimental.do_not_convert(self._steps))
            self.function = steps.get_concrete_function(iterator_spec, tf.TensorSpec([], tf.int32))

    def make(self, iterator: Any, limit: int) -> tuple[int, tuple[float, Any]]:
        """Makes an execution on the worker that calls this.

        Returns:
          The number of its steps, and their duration in seconds with the logs of the last one.
        """
        steps, seconds, logs = self.unpacked(self.function(iterator, tf.constant(limit)).numpy())
        return steps, (seconds, logs)

    def unpacked(self, numbers: np.ndarray) -> tuple[int, float, Any]:
        """Splits the result of `function`.

        Returns:
          The number of steps, their duration in seconds, and the logs of the last step; zeros
          without a step.
        """
        steps, seconds = numbers[:2]
        specs = tf.nest.flatten(self._logs)
        ends = np.cumsum([spec.shape.num_elements() for spec in specs])
        logs = [
            part.reshape(spec.shape).astype(spec.dtype.as_numpy_dtype)[()]
            for part, spec in zip(np.split(numbers[2:], ends[:-1]), specs, strict=True)
        ]
        return int(steps), float(seconds), tf.nest.pack_sequence_as(self._logs, logs)

    def _steps(self, iterator: Any, limit: tf.Tensor) -> tf.Tensor:
        begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            first = iterator.get_next_as_optional()
        # Traced before the loop, because the loop needs the types of the logs.
        step = self._traced_step(first.element_spec)
        self._logs = step.structured_outputs
        no_logs = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), self._logs)

        def goes_on(made: tf.Tensor, batch: Any, logs: Any) -> tf.Tensor:
            return tf.logical_and(made < limit, batch.has_value())

        def one_step(made: tf.Tensor, batch: Any, logs: Any) -> tuple[tf.Tensor, Any, Any]:
            logs = step(batch.get_value())
            made += 1
            following = tf.cond(
                made < limit,
                iterator.get_next_as_optional,
                lambda: tf.experimental.Optional.empty(first.element_spec),
            )
            return made, following, logs

        made, _, logs = tf.while_loop(
            goes_on, one_step, (tf.constant(0), first, no_logs), parallel_iterations=1
        )
        values = tf.nest.flatten(logs)
        with tf.control_dependencies([made, *values]):
            seconds = tf.timestamp() - begin
        numbers = [made, seconds, *values]
        return tf.concat([tf.reshape(tf.cast(value, tf.float64), [-1]) for value in numbers], 0)

    def _traced_step(self, batch_spec: Any) -> Any:
        @tf.function
        def step_on(batch: Any) -> Any:
            with packed_transfers() if self._packs else nullcontext():
                return self._step(OneBatch(batch))

        with converting():
            return step_on.get_concrete_function(batch_spec)
