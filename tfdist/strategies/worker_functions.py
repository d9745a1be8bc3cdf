"""What runs on the workers of an `EpochCoordinator`: the making of a shard, and steps on it.

dataset = strategy.distribute_datasets_from_function(shard(makers, element_spec))
coordinator.schedule(guard(train_function), (iterator,))    # RemoteValue of guard's results
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def shard(
    makers: Sequence[Callable[[], tf.data.Dataset]], element_spec: Any
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """The dataset function that gives each worker what the maker of its index makes."""

    @tf.autograph.experimental.do_not_convert
    def shard_of_this_worker(_: tf.distribute.InputContext) -> tf.data.Dataset:
        variant = tf.switch_case(_this_worker(), [_maker_of_variant(make) for make in makers])
        return tf.data.experimental.from_variant(variant, element_spec)

    return shard_of_this_worker


class _OneBatch:
    """An iterator over the one batch that a step was given."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __next__(self) -> Any:
        return self._batch


def guard(fn: Any) -> Any:
    """`fn` of an iterator, made to do nothing where the iterator has run out."""
    step = fn.python_function

    @tf.function
    def guarded(iterator: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
        batch = iterator.get_next_as_optional()
        specs: list[Any] = []

        def with_data() -> Any:
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
    """Of an iterator, reads over what the worker that runs this has read before."""

    @tf.function
    def read_over(iterator: Any) -> tf.Tensor:
        count = tf.constant(steps)[_this_worker()]
        for _ in tf.range(count):
            iterator.get_next_as_optional()
        return count

    return read_over


def _this_worker() -> tf.Tensor:
    """The index of the worker that runs the function being traced; int32, shape []."""
    index = tf.distribute.coordinator.experimental_get_current_worker_index()
    return tf.cast(index, tf.int32)


def _maker_of_variant(make: Callable[[], tf.data.Dataset]) -> Callable[[], tf.Tensor]:
    return lambda: tf.data.experimental.to_variant(make())
