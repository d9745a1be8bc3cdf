"""Functions that an `EpochCoordinator` runs on its workers: create a shard, and run steps on it.

dataset = strategy.distribute_datasets_from_function(shard(make, element_spec))
run_of(train_step, packs=True)(iterator, 10)    # ten steps, on the worker that calls this
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

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


def run_of(step: Callable[[Any], Any], *, packs: bool) -> Any:
    """Wraps a step as a run of several steps, which ends early if its iterator is exhausted.

    Repeated data can be exhausted too, because a shard can be empty.

    Args:
      step: takes an iterator and returns a nest of tensors, the logs.
      packs: whether the transfers of each step are packed; see `packed_transfers`.

    Returns:
      A `tf.function` that takes an iterator and the maximum number of steps, int32, shape []. It
      returns the worker's index, the number of its steps and their duration in seconds, together as
      float64, shape [3]; and the logs of the last step, or zeros without a step.
    """

    @tf.function
    def step_on(batch: Any) -> Any:
        with packed_transfers() if packs else nullcontext():
            return step(OneBatch(batch))

    @tf.function
    @tf.autograph.experimental.do_not_convert
    def run(iterator: Any, limit: tf.Tensor) -> tuple[tf.Tensor, Any]:
        begin = tf.timestamp()
        with tf.control_dependencies([begin]):
            first = iterator.get_next_as_optional()
        # Traced before the loop, because the loop needs the types of the logs.
        with autograph_status.ControlStatusCtx(autograph_status.Status.UNSPECIFIED):
            traced = step_on.get_concrete_function(first.element_spec)
        no_logs = tf.nest.map_structure(
            lambda spec: tf.zeros(spec.shape, spec.dtype), traced.structured_outputs
        )

        def goes_on(made: tf.Tensor, batch: Any, logs: Any) -> tf.Tensor:
            return tf.logical_and(made < limit, batch.has_value())

        def one_step(made: tf.Tensor, batch: Any, logs: Any) -> tuple[tf.Tensor, Any, Any]:
            logs = traced(batch.get_value())
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
        with tf.control_dependencies([made, *tf.nest.flatten(logs)]):
            seconds = tf.timestamp() - begin
        return tf.stack([_as_double(_this_worker()), _as_double(made), seconds]), logs

    return run


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


def _as_double(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.float64)
