"""Makes the output layers of a model compute in float32 under a policy of mixed precision.

    apply(model)        # before its train function is traced

Keras's guide asks each user to give them `dtype="float32"`. Keras 2 has no public way to change the
policy of a layer, and neither Keras says which layers make a model's outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat


def apply(model: Any) -> bool:
    """Changes the output layers whose policy is the global one; a second call changes nothing.

    Args:
      model: a Keras model.

    Returns:
      Whether the output layers are known. They are not for a model that is neither functional nor
      Sequential.
    """
    policy = tf.keras.mixed_precision.global_policy()
    layers = list(output_layers(model))
    for layer in layers:
        for part in layer._flatten_layers():
            if part.dtype_policy.name == policy.name:
                _set_float32(part)
    return bool(layers)


def output_layers(model: Any) -> Iterator[Any]:
    """The layers that make the outputs of a model, and of the models in it."""
    layers: list[Any] = []
    if isinstance(model, keras_compat.keras_of(model).Sequential):
        layers = model.layers[-1:]
    elif keras_compat.is_graph_of_layers(model):
        layers = [output._keras_history[0] for output in tf.nest.flatten(model.outputs)]
    for layer in layers:
        if isinstance(layer, keras_compat.keras_of(model).Model):
            yield from output_layers(layer)
        elif hasattr(layer, "_flatten_layers"):  # Else an operation of Keras 3.
            yield layer


def _set_float32(layer: Any) -> None:
    if keras_compat.is_keras_3(layer):
        layer.dtype_policy = "float32"
    else:
        layer._set_dtype_policy("float32")
