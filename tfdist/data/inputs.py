"""Converts the user's data to what strategies need: a function that returns a shard.

    dataset_fn = shard_function(train_input, trains=True)
    dataset_fn(tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1))

A function that takes an `InputContext` returns its own shard. Of a whole dataset, which a function
without a parameter returns, each of n tasks gets every n-th batch; of arrays, every n-th example;
of an object with a length and an index, such as a `keras.utils.PyDataset`, every n-th item.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from tfdist.data.signature import takes_argument
from tfdist.errors import UsageError
from tfdist.upstream import dataset_arguments, dataset_inputs, global_seed

DatasetFunction = Callable[[tf.distribute.InputContext], tf.data.Dataset]


class Items(Protocol):
    """Arrays `(x, y)`, or batches by their index, such as a `keras.utils.PyDataset`."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> object: ...


Data: TypeAlias = DatasetFunction | Callable[[], tf.data.Dataset] | tf.data.Dataset | Items

_ACCEPTED = (
    "a function that takes a tf.distribute.InputContext and returns a shard, a function without a "
    "parameter that returns the whole dataset, a tf.data.Dataset, arrays (x, y), or, where the "
    "tasks read their data themselves, an object with batches as its items, such as a "
    "keras.utils.PyDataset"
)
_FIELD = "training or validation data"
_DEFAULT_BATCH = 32  # as Keras's `fit`


def shard_function(
    data: Data, *, trains: bool, batch_size: int | None = None, reads_here: bool = True
) -> DatasetFunction:
    """Converts the user's data to a function that returns the dataset of a shard.

    Args:
      data: a function, a `tf.data.Dataset`, arrays, or an object with a length and an index.
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
        lengths = {len(array) for array in tf.nest.flatten(data)}
        if len(lengths) > 1:
            raise UsageError(
                _FIELD,
                received=f"arrays of {', '.join(map(str, sorted(lengths)))} rows",
                accepted="arrays of equal lengths: one row for each example",
                remedy="Correct the arrays.",
            )
        size = _DEFAULT_BATCH if batch_size is None else batch_size
        return _of_arrays(tuple(data), trains, size)
    if _has_items(data) and reads_here:
        return _of_items(data, trains)
    if not callable(data):
        raise UsageError(
            _FIELD,
            received=type(data).__name__,
            accepted=_ACCEPTED,
            remedy="Pass one of these; for a loader or a generator, a function that returns "
            "tf.data.Dataset.from_generator(make, output_signature=…), where make() returns a new "
            "iterator over all batches.",
        )
    function: Any = data
    return _of_whole(function) if is_whole(function) else _with_own_cache(function)


def is_whole(data: Any) -> bool:
    """Whether data is a whole dataset, or a function that returns one, and no shard."""
    return not callable(data) or not takes_argument(data, "context", "input_context")


def _with_own_cache(function: DatasetFunction) -> DatasetFunction:
    @functools.wraps(function)
    def call(context: tf.distribute.InputContext) -> tf.data.Dataset:
        with dataset_arguments.replaced(filename=lambda path: path and path + _suffix(context)):
            return _checked(function(context))

    return call


def _checked(returned: Any) -> tf.data.Dataset:
    """What the user's function has returned, if it is a dataset."""
    if isinstance(returned, tf.data.Dataset):
        return returned
    raise UsageError(
        _FIELD,
        received="a function that returns "
        + ("nothing" if returned is None else f"a {type(returned).__name__}"),
        accepted="one that returns a tf.data.Dataset",
        remedy="Return tf.data.Dataset.from_tensor_slices((x, y)).batch(size) for arrays, or "
        "tf.data.Dataset.from_generator(make, output_signature=…) for a generator or a loader.",
    )


def _of_whole(function: Callable[[], tf.data.Dataset]) -> DatasetFunction:
    @functools.wraps(function)
    def call(context: tf.distribute.InputContext) -> tf.data.Dataset:
        # All tasks must have the same order, or some examples are in several shards.
        with global_seed.default(), dataset_arguments.replaced(deterministic=lambda _: None):
            dataset = _checked(function())
        if context.num_input_pipelines > 1:
            _check_order(dataset, _suffix(context))
        options = tf.data.Options()
        options.deterministic = True
        dataset = dataset.with_options(options)
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)

    return _with_own_cache(call)


def _of_dataset(dataset: tf.data.Dataset, reads_here: bool) -> DatasetFunction:
    if not reads_here:
        raise UsageError(
            _FIELD,
            received="a tf.data.Dataset",
            accepted="a function that returns it: the workers create it, not this process",
            remedy="Pass a function without a parameter that returns the dataset.",
        )
    _check_order(dataset)
    return _of_whole(lambda: dataset)


def _of_arrays(arrays: tuple[Any, ...], trains: bool, batch_size: int) -> DatasetFunction:
    def examples() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(arrays)
        return dataset.shuffle(len(tf.nest.flatten(arrays)[0])) if trains else dataset

    return lambda context: _of_whole(examples)(context).batch(batch_size)


def _check_order(dataset: tf.data.Dataset, own: str = "") -> None:
    conflict = dataset_inputs.conflict(dataset, own)
    if conflict:
        raise UsageError(
            _FIELD,
            received=f"a tf.data.Dataset that {conflict}",
            accepted="one that has the same order in all tasks",
            remedy="Create it in a function without a parameter, and pass that, or leave this out.",
        )


def _suffix(context: tf.distribute.InputContext) -> str:
    """The end of the name of a file that the task of a shard writes."""
    return f"-{context.input_pipeline_id}" if context.num_input_pipelines > 1 else ""


def _of_items(data: Any, trains: bool) -> DatasetFunction:
    # They tell which sizes differ between batches.
    first, last = (_arrays(data[index]) for index in (0, len(data) - 1))
    flat = list(zip(tf.nest.flatten(first), tf.nest.flatten(last), strict=True))
    shapes = [tf.TensorShape(a.shape).most_specific_compatible_shape(b.shape) for a, b in flat]

    def read(index: Any) -> list[np.ndarray]:
        return tf.nest.flatten(_arrays(data[int(index)]))

    def item(index: tf.Tensor) -> Any:
        tensors = tf.numpy_function(read, [index], [array.dtype for array, _ in flat])
        for tensor, shape in zip(tensors, shapes, strict=True):
            tensor.set_shape([None, *shape[1:]] if shape.rank else shape)
        return tf.nest.pack_sequence_as(first, tensors)

    def indices() -> tf.data.Dataset:
        every = tf.data.Dataset.range(len(data))
        # As Keras's `fit`, which keeps the order of all others.
        is_shuffled = trains and isinstance(data, tf.keras.utils.Sequence)
        return every.shuffle(len(data)) if is_shuffled else every

    return lambda context: _of_whole(indices)(context).map(item)


def _has_items(data: Any) -> bool:
    is_other = hasattr(data, "shape") or isinstance(data, (str, bytes, list, tuple, Mapping))
    return not is_other and hasattr(data, "__len__") and hasattr(data, "__getitem__")


def _arrays(item: Any) -> Any:
    return tf.nest.map_structure(np.asarray, tuple(item) if isinstance(item, list) else item)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, tf.Tensor))
