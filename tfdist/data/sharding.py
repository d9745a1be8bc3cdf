"""Passes an already sharded dataset through Keras, which would shard and split it again.

    dataset = for_keras(Shards(local), steps)    # a tf.data.Dataset for `fit`
    class Strategy(TakesShards, tf.distribute.MirroredStrategy): …

Keras calls `strategy.experimental_distribute_dataset`, which treats each batch as a global batch
and divides it. `TakesShards` recognizes the result of `for_keras` and gives each replica one batch.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.compat.replaced import replaced
from tfdist.errors import UsageError
from tfdist.upstream import dataset_inputs, tf_data_autotune

UNKNOWN = int(tf.data.UNKNOWN_CARDINALITY)
INFINITE = int(tf.data.INFINITE_CARDINALITY)


@dataclass(frozen=True)
class Shards:
    """The shards behind a dataset of `job.dataset`.

    Attributes:
      local: this task's shard, in batches of the per-replica size.
      makers: for each worker, a function that creates its shard; empty unless the chief creates the
        workers' datasets.
      trains: whether this is training data, which a resumed job fast-forwards.
      is_even: whether all replicas of all tasks have the same number of batches.
    """

    local: tf.data.Dataset
    makers: tuple[Callable[[], tf.data.Dataset], ...] = ()
    trains: bool = False
    is_even: bool = False

    def map(self, function: Callable[..., Any], *args: Any, **options: Any) -> Shards:
        """The shards with `tf.data.Dataset.map` applied to each of them."""
        makers = tuple(
            functools.partial(lambda make: make().map(function, *args, **options), make)
            for make in self.makers
        )
        local = self.local.map(function, *args, **options)
        return dataclasses.replace(self, local=local, makers=makers)


def for_keras(shards: Shards, steps: int) -> tf.data.Dataset:
    """A dataset for Keras that stands for `shards` and has the cardinality `steps`.

    Args:
      shards: the shards that the strategy will read instead.
      steps: the number of steps per epoch, the same in every task; or UNKNOWN or INFINITE.
    """
    local = shards.local
    if steps == UNKNOWN:
        # The filter hides the cardinality of this shard, which is not the number of steps.
        keras_dataset = local.filter(lambda *_: True)
    elif steps == INFINITE:
        keras_dataset = local.repeat()
    else:
        keras_dataset = local.apply(tf.data.experimental.assert_cardinality(steps))
    return _ForKeras(keras_dataset, shards, steps)


class _Same(tf.data.Dataset):
    """A dataset with the elements of another one; Keras maps it for `class_weight`, and prefetches
    it."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        super().__init__(tf.data.experimental.to_variant(dataset))

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._dataset]

    @property
    def element_spec(self) -> Any:
        return self._dataset.element_spec


class _ForKeras(_Same):
    """A dataset that stands for shards."""

    def __init__(self, dataset: tf.data.Dataset, shards: Shards, steps: int) -> None:
        super().__init__(dataset)
        self.shards, self._steps = shards, steps

    def map(self, map_func: Callable[..., Any], *args: Any, **options: Any) -> tf.data.Dataset:
        return for_keras(self.shards.map(map_func, *args, **options), self._steps)

    def prefetch(self, *args: Any, **options: Any) -> tf.data.Dataset:
        return self  # Each replica's batches are prefetched in any case.


class Noticed(_Same):
    """A dataset that calls a function each time that its reading begins.

    Args:
      dataset: the dataset.
      notice: the function.
    """

    def __init__(self, dataset: tf.data.Dataset, notice: Callable[[], None]) -> None:
        super().__init__(dataset)
        self._notice = notice

    def __iter__(self) -> Any:
        self._notice()
        return super().__iter__()

    def map(self, map_func: Callable[..., Any], *args: Any, **options: Any) -> tf.data.Dataset:
        return Noticed(self._dataset.map(map_func, *args, **options), self._notice)

    def prefetch(self, *args: Any, **options: Any) -> tf.data.Dataset:
        return Noticed(self._dataset.prefetch(*args, **options), self._notice)


def shards_of(dataset: Any) -> Shards | None:
    """The shards behind a dataset of `for_keras`; None for any other dataset.

    Raises:
      UsageError: the dataset was derived from one of `for_keras`, other than by `map`.
    """
    if isinstance(dataset, _ForKeras):
        return dataset.shards
    if isinstance(dataset, tf.data.Dataset):
        for ancestor in dataset_inputs.ancestors(dataset):
            if isinstance(ancestor, _ForKeras):
                raise UsageError(
                    "data of fit",
                    received="a dataset that was made from the result of job.dataset",
                    accepted="the result of job.dataset itself, or its map",
                    remedy="Apply the transformation in the input function.",
                )
    return None


def without_autotune(dataset: Any) -> Any:
    """Turns the autotuning of a dataset off, unless its own options set it; returns anything else
    as it is.

    The autotuning thread sleeps for longer and longer intervals, and the end of an iterator waits
    for it: after each epoch up to the lifetime of the iterator. Without autotuning, automatic
    values are TensorFlow's fixed ones: as many parallel calls as threads, at most 16.
    """
    tf_data_autotune.apply()

    if not isinstance(dataset, tf.data.Dataset):
        return dataset
    with warnings.catch_warnings():
        # In a graph TensorFlow warns that serialization loses the options.
        warnings.simplefilter("ignore")
        is_set = dataset.options().autotune.enabled is not None
    if is_set:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def count_batches(dataset: tf.data.Dataset) -> int:
    """The number of batches of `dataset`, or INFINITE; reads an UNKNOWN one to its end."""
    batches = int(dataset.cardinality())
    if batches == UNKNOWN:
        batches = int(dataset.reduce(tf.constant(0, tf.int64), lambda count, _: count + 1))
    return batches


def steps_of(batches: Sequence[int], replicas: int) -> int:
    """The number of steps that the longest shard needs.

    Args:
      batches: the number of batches of each shard, or UNKNOWN, or INFINITE.
      replicas: the number of replicas that share a shard.

    Returns:
      UNKNOWN if any shard is; INFINITE if any is and none is unknown.
    """
    for special in (UNKNOWN, INFINITE):
        if special in batches:
            return special
    return -(-max(batches) // replicas)


def with_repeats(
    dataset: tf.data.Dataset, count: int, again: Callable[[], tf.data.Dataset]
) -> tf.data.Dataset:
    """Appends `count` batches that each contain one example of the dataset.

    Args:
      dataset: the batches. A second reader of it would change a shuffle order.
      count: the number of batches.
      again: returns another dataset of the same examples; called only if these are not dense
        tensors of known rank.
    """
    empty = _empty_batch(dataset.element_spec)
    if empty is None or not all(isinstance(part, tf.Tensor) for part in tf.nest.flatten(empty)):
        batch = again().unbatch().batch(1).take(1).get_single_element()
        return dataset.concatenate(tf.data.Dataset.from_tensors(batch).repeat(count))
    return _with_rows_of_the_last(dataset, count, empty, rows=1)


def _with_rows_of_the_last(
    dataset: tf.data.Dataset, count: int, empty: Any, *, rows: int
) -> tf.data.Dataset:
    """Appends `count` batches with the first rows of the last batch, or `empty` without any."""

    def next_batch(last: Any, element: tuple[Any, tf.Tensor]) -> tuple[Any, Any]:
        own, is_missing = element
        first = tf.nest.map_structure(lambda tensor: tensor[:rows], last)
        batch = tf.cond(is_missing, lambda: first, lambda: own)
        return batch, batch

    own = tf.data.Dataset.zip((dataset, tf.data.Dataset.from_tensors(False).repeat()))
    missing = tf.data.Dataset.from_tensors((empty, True)).repeat(count)
    return own.concatenate(missing).scan(empty, next_batch)


def with_empty_batches(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset | None:
    """Appends `count` empty batches to a dataset; None if its type does not tell what they are.

    It does not read a batch, unlike `empty_batches`: that could change a shuffle order.
    """
    if not count:
        return dataset
    empty = _empty_batch(dataset.element_spec)
    if empty is None:
        return None
    specs = [each for each in tf.nest.flatten(dataset.element_spec) if hasattr(each, "shape")]
    if any(isinstance(spec, tf.TensorSpec) and None in spec.shape[1:].as_list() for spec in specs):
        # A model may not take texts, say, of length 0.
        return _with_rows_of_the_last(dataset, count, empty, rows=0)
    return dataset.concatenate(tf.data.Dataset.from_tensors(empty).repeat(count))


def of_unknown_size(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same batches, without a static size.

    TensorFlow leaves out a step in which a replica has no batch if all shapes are static.
    """
    empty = _empty_batch(dataset.element_spec)
    if empty is None:
        return dataset
    return dataset.concatenate(tf.data.Dataset.from_tensors(empty).take(0))


def _empty_batch(element_spec: Any) -> Any:
    """A batch without examples; None if the type does not tell its shape."""
    parts = [_empty_part(spec) for spec in tf.nest.flatten(element_spec)]
    if any(part is None for part in parts):
        return None
    return tf.nest.pack_sequence_as(element_spec, parts)


def _empty_part(spec: Any) -> Any:
    shape = getattr(spec, "shape", tf.TensorShape(None))
    if not shape.rank:
        return None
    if isinstance(spec, tf.TensorSpec):
        return tf.zeros([0, *(size or 0 for size in shape[1:])], spec.dtype)
    ragged_rank = spec.ragged_rank if isinstance(spec, tf.RaggedTensorSpec) else 0
    sizes = shape[ragged_rank + 1 :].as_list()
    if None in sizes:
        return None
    if isinstance(spec, tf.RaggedTensorSpec):
        splits = [tf.zeros([1], spec.row_splits_dtype)] * ragged_rank
        return tf.RaggedTensor.from_nested_row_splits(tf.zeros([0, *sizes], spec.dtype), splits)
    if isinstance(spec, tf.SparseTensorSpec):
        indices = tf.zeros([0, shape.rank], tf.int64)
        return tf.SparseTensor(indices, tf.zeros([0], spec.dtype), [0, *sizes])
    return None


def empty_batches(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """A dataset of `count` empty batches, with the structure of `dataset`."""

    def without_examples(*batch: Any) -> Any:
        emptied = tf.nest.map_structure(_no_rows, batch)
        # `map` passes a batch that is not a tuple as a single argument.
        return emptied if isinstance(dataset.element_spec, tuple) else emptied[0]

    return dataset.take(1).map(without_examples).repeat(count)


def _no_rows(tensor: Any) -> Any:
    if not isinstance(tensor, tf.SparseTensor):
        return tensor[:0]
    shape = tensor.dense_shape
    return tf.sparse.slice(tensor, tf.zeros_like(shape), tf.concat([[0], shape[1:]], 0))


class TakesShards:
    """Mixin for a `tf.distribute.Strategy`: gives each replica batches of its own task's shard."""

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        shards = shards_of(dataset)
        if shards is None:
            return super().experimental_distribute_dataset(dataset, options)  # type: ignore[misc]
        # In each step, the tasks would ask each other whether one of them has a batch.
        extended: Any = self.extended  # type: ignore[attr-defined]
        asks = "experimental_enable_get_next_as_optional"
        with replaced(extended, asks, False) if shards.is_even else nullcontext():
            return self.distribute_datasets_from_function(  # type: ignore[attr-defined]
                lambda _: shards.local, options
            )
