"""Makes what a user may pass as data into the function of a shard, which strategies need.

    dataset_fn = shard_function(train_input, trains=True)
    dataset_fn(tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1))

A function that takes an `InputContext` returns its own shard. Of a whole dataset, which a function
without a parameter returns, each of n tasks gets every n-th batch; of arrays, every n-th example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.signature import takes_argument
from tfdist.upstream import dataset_inputs, global_seed

DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]
Data: TypeAlias = (
    DatasetFunction | Callable[[], tf.data.Dataset] | tf.data.Dataset | tuple[Any, ...]
)

_ACCEPTED = (
    "a function that takes a tf.distribute.InputContext and returns a shard, a function without a "
    "parameter that returns the whole dataset, a tf.data.Dataset, or arrays (x, y)"
)
_FIELD = "training or validation data"
_DEFAULT_BATCH = 32  # as Keras's `fit`


def shard_function(
    data: Data, *, trains: bool, batch_size: int | None = None, reads_here: bool = True
) -> DatasetFunction:
    """The function of a shard for what the user passed.

    Args:
      data: a function, a `tf.data.Dataset`, or arrays.
      trains: whether this is training data, so that arrays are shuffled.
      batch_size: the number of arrays' rows in a batch of a replica.
      reads_here: whether this process reads its shard itself; otherwise others read the shards.

    Returns:
      A function that takes an `InputContext`.

    Raises:
      UsageError: `data` is something else, or the tasks would not get different shards of it.
    """
    if isinstance(data, tf.data.Dataset):
        return _of_dataset(data, reads_here)
    if isinstance(data, (tuple, list)) and all(map(_is_array, tf.nest.flatten(data))):
        size = _DEFAULT_BATCH if batch_size is None else batch_size
        return functools.partial(_of_arrays, tuple(data), trains, size)
    if not callable(data):
        raise UsageError(
            _FIELD,
            received=type(data).__name__,
            accepted=_ACCEPTED,
            remedy="Pass one of these.",
        )
    function: Any = data
    return _of_whole(function) if is_whole(function) else function


def is_whole(data: Any) -> bool:
    """Whether data is a whole dataset, or a function that returns one, and no shard."""
    if callable(data):
        return not takes_argument(data, "context", "input_context")
    return isinstance(data, tf.data.Dataset)


def is_not_sharded(
    dataset_fn: DatasetFunction, context: tf.distribute.InputContext, batches: int
) -> bool:
    """Whether an input function returns the whole dataset although others read it, too.

    Args:
      dataset_fn: the input function.
      context: the argument with which it has returned a dataset.
      batches: the cardinality of this dataset.
    """
    # A single batch may be the shard of a small dataset; negative numbers are unknown and infinite.
    if context.num_input_pipelines == 1 or batches < 2:
        return False
    # With the same number of replicas, because the function may divide a global batch size by it.
    alone = tf.distribute.InputContext(num_replicas_in_sync=context.num_replicas_in_sync)
    return int(dataset_fn(alone).cardinality()) == batches


def _of_whole(function: Callable[[], tf.data.Dataset]) -> DatasetFunction:
    @functools.wraps(function)
    def call(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # All tasks must shuffle in the same order, or some examples are in several shards.
        with global_seed.default():
            dataset = function()
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)

    return call


def _of_dataset(dataset: tf.data.Dataset, reads_here: bool) -> DatasetFunction:
    if not reads_here:
        raise UsageError(
            _FIELD,
            received="a tf.data.Dataset",
            accepted="a function that returns it: the workers create it, not this process",
            remedy="Pass a function without a parameter that returns the dataset.",
        )
    if dataset_inputs.shuffles_at_random(dataset):
        raise UsageError(
            _FIELD,
            received="a tf.data.Dataset that shuffles without a seed",
            accepted="one that has the same order in all tasks",
            remedy="Pass a function without a parameter that returns the dataset, or a seed to "
            "shuffle.",
        )
    return lambda context: dataset.shard(context.num_input_pipelines, context.input_pipeline_id)


def _of_arrays(
    arrays: tuple[Any, ...], trains: bool, batch_size: int, context: tf.distribute.InputContext
) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    if trains:
        with global_seed.default():
            dataset = dataset.shuffle(len(tf.nest.flatten(arrays)[0]))
    shard = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return shard.batch(batch_size)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, tf.Tensor))
