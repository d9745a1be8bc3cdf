"""The sizes of a Keras model: the bytes of its weights, and of what passes between its layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tfdist.compat import keras as keras_compat

if TYPE_CHECKING:
    import tensorflow as tf


class UnsupportedModelError(Exception):
    """A script or a model whose sizes cannot be read; the message follows "the script, "."""


def sizes_of(model: tf.keras.Model) -> dict[str, Any]:
    """The sizes of a Keras model.

    Returns:
      `layers`: for each layer but the inputs, in the order of the forward pass, the arguments of
      `planner.model.Layer`; the layers of a model within a Sequential one count one by one.
      `inputs` and `outputs`: bytes per example. `embeddings`: the names of the embedding layers.
    """
    import tensorflow as tf

    try:
        inputs, outputs = tf.nest.flatten(model.inputs), tf.nest.flatten(model.outputs)
        layers = _layers(model)
    except (AttributeError, RuntimeError, ValueError) as error:
        # The layers of a subclassed model have no `input` and `output`.
        raise UnsupportedModelError(f"whose model has no sequence of layers ({error})") from error
    return {
        "layers": [
            [
                sum(_bytes(weight) for weight in layer.trainable_weights),
                sum(map(_bytes_per_example, tensors)),
                border,
                sum(map(_bytes, keras_compat.without_vocabularies(layer.non_trainable_weights))),
            ]
            for layer, tensors, border in layers
        ],
        "inputs": sum(map(_bytes_per_example, inputs)),
        "outputs": sum(map(_bytes_per_example, outputs)),
        "embeddings": [
            layer.name for layer, *_ in layers if isinstance(layer, tf.keras.layers.Embedding)
        ],
    }


def _layers(model: tf.keras.Model) -> list[tuple[Any, list[Any], float]]:
    """The layers of a model, their outputs, and the bytes per example at the border after each."""
    import tensorflow as tf

    layers = keras_compat.layers_of(model)
    if not isinstance(model, tf.keras.Sequential):
        produced = [tf.nest.flatten(layer.output) for layer in layers]
        return list(zip(layers, produced, _borders(model, layers, produced), strict=True))
    found = []
    for layer in layers:
        if keras_compat.is_graph_of_layers(layer):
            found += _layers(layer)
        else:
            tensors = tf.nest.flatten(layer.output)
            found.append((layer, tensors, float(sum(map(_bytes_per_example, tensors)))))
    return found


def _borders(model: tf.keras.Model, layers: list[Any], produced: list[list[Any]]) -> list[float]:
    """The bytes per example that cross the border after each layer: made before, used after it."""
    import tensorflow as tf

    inputs, outputs = tf.nest.flatten(model.inputs), tf.nest.flatten(model.outputs)
    consumed = [tf.nest.flatten(layer.input) for layer in layers]
    origin = {id(tensor): (0, tensor) for tensor in inputs}
    for index, tensors in enumerate(produced):
        origin.update((id(tensor), (index, tensor)) for tensor in tensors)
    last_use: dict[int, int] = {}
    for index, tensors in enumerate([*consumed, outputs]):
        last_use.update((id(tensor), index) for tensor in tensors)
    if not last_use.keys() <= origin.keys():
        # A layer that is called several times, and a model in a model, have several outputs.
        raise UnsupportedModelError("whose model calls a layer several times or contains a model")
    borders = [0.0] * len(produced)
    for tensor_id, last in last_use.items():
        first, tensor = origin[tensor_id]
        for border in range(first, last):
            borders[border] += _bytes_per_example(tensor)
    return borders


def _bytes(weight: Any) -> int:
    return math.prod(weight.shape) * _item_bytes(weight)


def _bytes_per_example(tensor: Any) -> int:
    shape = tuple(tensor.shape)[1:]
    if None in shape:
        raise UnsupportedModelError(f"whose model has a tensor of shape {(None, *shape)}")
    return math.prod(shape) * _item_bytes(tensor)


def _item_bytes(tensor: Any) -> int:
    import tensorflow as tf

    return int(tf.as_dtype(tensor.dtype).size)
