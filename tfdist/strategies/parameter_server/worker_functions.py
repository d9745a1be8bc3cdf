"""Functions that an `EpochCoordinator` runs on its workers: create a shard, and run steps on it.

dataset = strategy.distribute_datasets_from_function(shard(make, element_spec))
run = RunOf(train_step, packs=True)
run.unpacked(run.function(iterator, 10).numpy())    # ten steps, on the worker that calls this
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx as autograph_status

from tfdist.strategies.parameter_server.packed_transfers import packed_transfers


def shard(
    make: Callable[[], tf.data.Dataset], element_spec: Any
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """A dataset function that creates a worker's shard.

    Args:
      make: creates the shard.
      element_spec: the element spec that all workers' datasets have.
    """

    @tf.autograph.experimental.do_not_convert
    def shard_of_a_worker(_: tf.distribute.InputContext) -> tf.data.Dataset:
        # Only this function is excluded from AutoGraph: the user's function may have an `if` on a
        # tensor in a `map`.
        with autograph_status.ControlStatusCtx(autograph_status.Status.UNSPECIFIED):
            variant = tf.data.experimental.to_variant(make())
        return tf.data.experimental.from_variant(variant, element_spec)

    return shard_of_a_worker


class OneBatch:
    """An iterator over a single batch, the argument of a step."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __next__(self) -> Any:
        return self._batch


class RunOf:
    """A step as a run of several steps, which ends early if its iterator is exhausted.

    Repeated data can be exhausted too, because a shard can be empty.

    Args:
      step: takes an iterator and returns a nest of numeric tensors of static shapes, the logs.
      packs: whether the transfers of each step are packed; see `packed_transfers`.

    Attributes:
      function: a `tf.function` that takes an iterator and the maximum number of steps, int32, shape
        []. It returns one tensor, float64, shape [elements], because each tensor that the chief
        fetches costs a message. `unpacked` splits it.
    """

    def __init__(self, step: Callable[[Any], Any], *, packs: bool) -> None:
        self._step = step
        self._packs = packs
        self._logs: Any = None
        self.function = tf.function(tf.autograph.experimental.do_not_convert(self._run))

    def unpacked(self, numbers: np.ndarray) -> tuple[int, int, float, Any]:
        """Splits the result of `function`, which has been traced.

        Returns:
          The worker's index, the number of its steps, their duration in seconds, and the logs of
          the last step; zeros without a step.
        """
        worker, steps, seconds = numbers[:3]
        specs = tf.nest.flatten(self._logs)
        ends = np.cumsum([spec.shape.num_elements() for spec in specs])
        logs = [
            part.reshape(spec.shape).astype(spec.dtype.as_numpy_dtype)[()]
            for part, spec in zip(np.split(numbers[3:], ends[:-1]), specs, strict=True)
        ]
        return int(worker), int(steps), float(seconds), tf.nest.pack_sequence_as(self._logs, logs)

    def _run(self, iterator: Any, limit: tf.Tensor) -> tf.Tensor:
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
        numbers = [_this_worker(), made, seconds, *values]
        return tf.concat([tf.reshape(tf.cast(value, tf.float64), [-1]) for value in numbers], 0)

    def _traced_step(self, batch_spec: Any) -> Any:
        @tf.function
        def step_on(batch: Any) -> Any:
            with packed_transfers() if self._packs else nullcontext():
                return self._step(OneBatch(batch))

        with autograph_status.ControlStatusCtx(autograph_status.Status.UNSPECIFIED):
            return step_on.get_concrete_function(batch_spec)


def skip(steps: tuple[int, ...]) -> Any:
    """A `tf.function` that skips the first batches of an iterator on a worker.

    Args:
      steps: by worker, the number of batches to skip.

    Returns:
      A function that takes an iterator and returns the number of skipped batches, int32, shape [].
    """

    @tf.function
    def skip_batches(iterator: Any) -> tf.Tensor:
        count = tf.constant(steps)[_this_worker()]
        for _ in tf.range(count):
            iterator.get_next_as_optional()
        return count

    return skip_batches


def _this_worker() -> tf.Tensor:
    """The index of the worker that runs the function being traced; int32, shape []."""
    index = tf.distribute.coordinator.experimental_get_current_worker_index()
    return tf.cast(index, tf.int32)
