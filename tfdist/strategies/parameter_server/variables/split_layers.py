"""Splits the tables of `Embedding` and the kernels of `Dense` of Keras 3 over the ps.

    apply()
    strategy.layer_partitioner = partitioner_of(ParameterServerOptions(partition_bytes=1 << 20))
    with strategy.scope():
        table = keras.layers.Embedding(1 << 20, 16)
        table.build()
    len(table.trainable_variables)    # 64

A Keras 3 variable holds one `tf.Variable`, so TensorFlow's `ShardedVariable` does not fit into it.
Here, each part is a Keras variable of the layer. The optimizer sees only parts: it has slots for
each, and a part of a table gets the gradients of its own rows. The two layers look up, or multiply,
part by part. All other layers, and subclasses of these two, keep their variables whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import accumulate, pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.strategies.parameter_server.variables.part_initializers import part_initializer
from tfdist.upstream.wrapping import apply_wrapper

# The layers that can use a variable in parts, and the name of that variable.
_SPLIT = {keras.layers.Embedding: "embeddings", keras.layers.Dense: "kernel"}
# Regularizers whose value for a variable is the sum over its parts.
_ADDITIVE = (
    type(None),
    keras.regularizers.L1,
    keras.regularizers.L2,
    keras.regularizers.L1L2,
)
_ATTRIBUTE = "_tfdist_split"


class SplitVariable:
    """A variable in parts, in place of the Keras variable of a layer. It converts to a tensor.

    Not a trackable object: its parts are variables of the layer.

    Args:
      parts: the Keras variables, in the order of their rows.
      offsets: the first row of each part, and the number of rows.
    """

    def __init__(self, parts: Sequence[Any], offsets: Sequence[int]) -> None:
        self.parts = parts
        self.offsets = offsets
        self.shape = (offsets[-1], *parts[0].shape[1:])
        self._whole: Any = None

    @property
    def dtype(self) -> str:
        dtype: str = self.parts[0].dtype
        return dtype

    def put_together(self) -> None:
        """Makes TensorFlow save the parts as one tensor, if they have values."""
        values = [part._value for part in self.parts]
        if self._whole is None and all(value is not None for value in values):
            self._whole = tf.__internal__.distribute.ShardedVariable(
                values, name=self.parts[0].path
            )

    def numpy(self) -> np.ndarray:
        """The whole value."""
        return np.concatenate([part.numpy() for part in self.parts])

    def assign(self, value: Any) -> None:
        """Sets the value of all parts."""
        if tuple(value.shape) != self.shape:
            raise ValueError(f"shape: received {tuple(value.shape)}; accepted: {self.shape}.")
        for part, (begin, end) in zip(self.parts, pairwise(self.offsets), strict=True):
            part.assign(value[begin:end])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.numpy().astype(dtype or self.dtype)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        whole = tf.concat([part.value for part in self.parts], axis=0, name=name or "whole")
        return whole if dtype is None else tf.cast(whole, dtype)


def offsets_of(rows: int, parts: int) -> list[int]:
    """The first row of each part, and the end: the `div` partition of `tf.nn.embedding_lookup`."""
    sizes = [rows // parts + (part < rows % parts) for part in range(parts)]
    return [0, *accumulate(sizes)]


def _add_weight(add_weight: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces `add_weight` to return a `SplitVariable` for a large table or kernel."""
    count = _parts_of(layer, kwargs) if not args else 1
    if count == 1:
        return add_weight(layer, *args, **kwargs)
    shape, name = tuple(kwargs["shape"]), kwargs["name"]
    initializer = keras.initializers.get(kwargs["initializer"])
    offsets = offsets_of(shape[0], count)
    parts = []
    for part, (begin, end) in enumerate(pairwise(offsets)):
        own = {
            "shape": (end - begin, *shape[1:]),
            "initializer": part_initializer(initializer, shape, begin),
            "name": f"{name}_part_{part}",
        }
        parts.append(add_weight(layer, **{**kwargs, **own}))
    split = SplitVariable(parts, offsets)
    object.__setattr__(layer, _ATTRIBUTE, split)
    split.put_together()
    tf.distribute.get_strategy().split_variables.add(split)
    return split


def _parts_of(layer: Any, weight: dict[str, Any]) -> int:
    """The number of parts of a weight that a layer adds; 1 if it stays whole."""
    strategy = tf.distribute.get_strategy()
    partitioner = getattr(strategy, "layer_partitioner", None)
    if (
        partitioner is None
        or _SPLIT.get(type(layer)) != weight.get("name")
        or len(weight["shape"]) != 2
        or layer.quantization_mode is not None
        or layer.lora_rank
        or weight.get("constraint") is not None
        or type(weight.get("regularizer")) not in _ADDITIVE
    ):
        return 1
    dtype = tf.as_dtype(weight.get("dtype") or layer.variable_dtype)
    return int(partitioner(tf.TensorShape(weight["shape"]), dtype)[0])


def _of_split(
    method: Callable[..., Any], own: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any
) -> Any:
    """Calls `method` in place of a layer's own one if the layer has a variable in parts.

    `method` takes the layer, the `SplitVariable` and the arguments.
    """
    split: SplitVariable | None = vars(layer).get(_ATTRIBUTE)
    if split is None:
        return own(layer, *args, **kwargs)
    return method(layer, split, *args, **kwargs)


def _look_up(layer: Any, split: SplitVariable, inputs: Any) -> Any:
    """Replaces `Embedding.call`: reads only the rows of the batch from each part."""
    if isinstance(inputs, tf.SparseTensor):
        raise UsageError(
            f"input of layer {layer.name}",
            received="a SparseTensor",
            accepted="a dense or ragged tensor, for a table in parts",
            remedy="Convert the input, or leave out --partition_bytes and --variable_partitions.",
        )
    if keras.backend.standardize_dtype(inputs.dtype) not in ("int32", "int64"):
        inputs = keras.ops.cast(inputs, "int32")
    rows = tf.ragged.map_flat_values(partial(_rows, split), inputs)
    return keras.ops.cast(rows, dtype=layer.compute_dtype)


def _rows(split: SplitVariable, indices: tf.Tensor) -> tf.Tensor:
    # Keras counts negative indices from the end of the table.
    count = tf.constant(split.shape[0], indices.dtype)
    indices = tf.where(indices < 0, indices + count, indices)
    # With a list, this is `div` partitioning, as in `offsets_of`.
    return tf.nn.embedding_lookup([part.value for part in split.parts], indices)


def _multiply(layer: Any, split: SplitVariable, inputs: Any, training: Any = None) -> Any:
    """Replaces `Dense.call`: multiplies part by part."""
    if isinstance(inputs, tf.SparseTensor):
        result = keras.ops.matmul(inputs, tf.convert_to_tensor(split))
    else:
        sizes = [part.shape[0] for part in split.parts]
        columns = tf.split(inputs, sizes, axis=-1)
        products = map(keras.ops.matmul, columns, split.parts)
        result = reduce(keras.ops.add, products)
    if layer.bias is not None:
        result = keras.ops.add(result, layer.bias)
    return result if layer.activation is None else layer.activation(result)


def _whole_weights(layer: Any, split: SplitVariable) -> list[Any]:
    bias = getattr(layer, "bias", None)
    return [split] if bias is None else [split, bias]


def _get_weights(layer: Any, split: SplitVariable) -> list[np.ndarray]:
    return [weight.numpy() for weight in _whole_weights(layer, split)]


def _set_weights(layer: Any, split: SplitVariable, weights: Any) -> None:
    for weight, value in zip(_whole_weights(layer, split), weights, strict=True):
        weight.assign(np.asarray(value))


def _save(layer: Any, split: SplitVariable, store: Any) -> None:
    """Replaces `save_own_variables`: writes the same file as a layer without parts."""
    for index, value in enumerate(_get_weights(layer, split)):
        store[str(index)] = value


def _load(layer: Any, split: SplitVariable, store: Any) -> None:
    """Replaces `load_own_variables`: reads the same file as a layer without parts."""
    count = len(_whole_weights(layer, split))
    _set_weights(layer, split, [store[str(index)] for index in range(count)])


def _refuse(name: str, layer: Any, split: SplitVariable, *_: Any, **__: Any) -> None:
    """Refuses the method `name`, which would replace the kernel or table."""
    raise UsageError(
        f"{name} of layer {layer.name}",
        received=f"a variable in {len(split.parts)} parts",
        accepted="a whole variable",
        remedy="Leave out --partition_bytes and --variable_partitions.",
    )


def apply() -> None:
    """Patches `Embedding` and `Dense` of Keras 3 to split variables.

    Only in the scope of a strategy that has a `layer_partitioner`, which takes the shape and the
    dtype of a variable and returns the number of its parts by axis; and `split_variables`, a set.
    """
    for kind, call in ((keras.layers.Embedding, _look_up), (keras.layers.Dense, _multiply)):
        methods: dict[str, Callable[..., Any]] = {
            "call": call,
            "save_own_variables": _save,
            "load_own_variables": _load,
            "get_weights": _get_weights,
            "set_weights": _set_weights,
            "enable_lora": partial(_refuse, "enable_lora"),
            "quantize": partial(_refuse, "quantize"),
        }
        for name, method in methods.items():
            apply_wrapper(kind, name, partial(_of_split, method))
        apply_wrapper(kind, "add_weight", _add_weight)
