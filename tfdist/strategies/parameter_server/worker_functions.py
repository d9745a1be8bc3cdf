"""Functions that an `EpochCoordinator` runs on its workers: create a shard, and run steps on it.

dataset = strategy.distribute_datasets_from_function(shard(make, element_spec))
coordinator.schedule(guard(train_function, packs=True), (iterator,))    # RemoteValue of its results
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


class _OneBatch:
    """An iterator over a single batch, the argument of a step."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __next__(self) -> Any:
        return self._batch


def guard(fn: Any, *, packs: bool) -> Any:
    """Wraps a step so that it does nothing if its iterator is exhausted.

    Repeated data can be exhausted too, because a shard can be empty.

    Args:
      fn: the `tf.function` of a step; takes an iterator and returns a nest of tensors, the logs.
      packs: whether the transfers of the step are packed; see `packed_transfers`.

    Returns:
      A `tf.function` that takes an iterator and returns the worker's index, int32, shape [];
      whether there was data, bool, shape []; and the logs.
    """
    step = fn.python_function

    @tf.function
    def guarded(iterator: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
        batch = iterator.get_next_as_optional()
        specs: list[Any] = []

        def with_data() -> Any:
            with packed_transfers() if packs else nullcontext():
                logs = step(_OneBatch(batch.get_value()))
            specs.append(tf.nest.map_structure(tf.TensorSpec.from_tensor, logs))
            return logs

        def without_data() -> Any:
            return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs[0])

        had_data = batch.has_value()
        logs = tf.cond(had_data, with_data, without_data)
        return _this_worker(), had_data, logs

    return guarded


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
