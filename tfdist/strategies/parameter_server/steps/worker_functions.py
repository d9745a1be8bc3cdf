"""The functions that asynchronous steps run on a worker.

execution = Execution(strategy, train_step, iterator_spec, marks, packs=True)
# On the worker that calls this:
steps, (seconds, logs) = execution.make(iterator, limit=10, shard=3)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.building import zeros
from tfdist.strategies.parameter_server.steps.marks import Marks
from tfdist.strategies.parameter_server.steps.timing import Seconds
from tfdist.strategies.parameter_server.steps.tracing import converting, scheduled
from tfdist.strategies.parameter_server.transfers.packed_step import packed_transfers


class Execution:
    """A function that makes several steps, and ends early if their iterator is exhausted.

    Repeated data can be exhausted too, because a shard can be empty.

    Args:
      strategy: the TensorFlow strategy.
      step: takes an iterator and returns a nest of numeric tensors of static shapes, the logs.
      iterator_spec: the `tf.TypeSpec` of the iterators.
      marks: counts the steps of each shard on a ps; None for none.
      packs: whether the transfers of each step are packed; see `packed_transfers`.

    Attributes:
      function: the concrete function; takes an iterator, the maximum number of steps, and the
        number of the shard, both int32, shape []. It returns one tensor, float64, shape [elements],
        because each tensor that the chief fetches costs a message. `make` splits it.
    """

    def __init__(
        self,
        strategy: Any,
        step: Callable[[Any], Any],
        iterator_spec: Any,
        marks: Marks | None,
        *,
        packs: bool,
    ) -> None:
        self._step = step
        self._marks = marks
        self._packs = packs
        self._logs: Any = None
        with scheduled(strategy):
            steps = tf.function(tf.autograph.experimental.do_not_convert(self._steps))
            self.function = steps.get_concrete_function(
                iterator_spec, tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int32)
            )

    def make(self, iterator: Any, limit: int, shard: int) -> tuple[int, tuple[Seconds, Any]]:
        """Runs the function on the device of the caller.

        Returns:
          The number of its steps, and their seconds with the logs of the last one; zeros without a
          step.
        """
        numbers = self.function(iterator, tf.constant(limit), tf.constant(shard)).numpy()
        steps, *seconds = (float(number) for number in numbers[:4])
        specs = tf.nest.flatten(self._logs)
        ends = np.cumsum([spec.shape.num_elements() for spec in specs])
        logs = [
            part.reshape(spec.shape).astype(spec.dtype.as_numpy_dtype)[()]
            for part, spec in zip(np.split(numbers[4:], ends[:-1]), specs, strict=True)
        ]
        return int(steps), (Seconds(*seconds), tf.nest.pack_sequence_as(self._logs, logs))

    def _steps(self, iterator: Any, limit: tf.Tensor, shard: tf.Tensor) -> tf.Tensor:
        begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            first = iterator.get_next_as_optional()
        first_wait = _timestamp_after(first) - begin
        # Traced before the loop, because the loop needs the types of the logs.
        step = self._traced_step(first.element_spec)
        self._logs, _ = step.structured_outputs
        no_logs = zeros(self._logs)

        def goes_on(made: tf.Tensor, batch: Any, *_: Any) -> tf.Tensor:
            return tf.logical_and(made < limit, batch.has_value())

        def one_step(
            made: tf.Tensor, batch: Any, waited: tf.Tensor, sent: tf.Tensor, logs: Any
        ) -> tuple[Any, ...]:
            logs, (read, computed) = step(batch.get_value(), shard)
            end = _timestamp_after(logs)
            made += 1
            following = tf.cond(
                made < limit,
                iterator.get_next_as_optional,
                lambda: tf.experimental.Optional.empty(first.element_spec),
            )
            # The next batch is made while the step runs.
            waited += tf.maximum(_timestamp_after(following) - end, 0.0)
            return made, following, waited, sent + read + end - computed, logs

        made, _, waited, sent, logs = tf.while_loop(
            goes_on,
            one_step,
            (tf.constant(0), first, first_wait, tf.constant(0.0, tf.float64), no_logs),
            parallel_iterations=1,
        )
        values = tf.nest.flatten(logs)
        seconds = _timestamp_after([made, waited, *values]) - begin
        numbers = [made, seconds, waited, sent, *values]
        return tf.concat([tf.reshape(tf.cast(value, tf.float64), [-1]) for value in numbers], 0)

    def _traced_step(self, batch_spec: Any) -> Any:
        @tf.function
        def step_on(batch: Any, shard: tf.Tensor) -> Any:
            begin = _timestamp_after(batch)
            with packed_transfers() if self._packs else nullcontext() as transfers:
                logs = self._step(iter([batch]))
            if self._marks is not None:
                sent = transfers.sent if transfers is not None else []
                with tf.control_dependencies(sent or tf.nest.flatten(logs)):
                    self._marks.add(shard)
            if transfers is None or not transfers.received or not transfers.sent:
                return logs, (begin * float("nan"), begin)
            read = _timestamp_after(transfers.received) - begin
            return logs, (read, _timestamp_after(transfers.sent))

        with converting():
            return step_on.get_concrete_function(batch_spec, tf.TensorSpec([], tf.int32))


def _timestamp_after(values: Any) -> tf.Tensor:
    """The time when a nest of tensors is computed: seconds since 1970, float64, shape []."""
    tensors = tf.nest.flatten(values, expand_composites=True)
    with tf.control_dependencies(tensors):
        return tf.timestamp()
