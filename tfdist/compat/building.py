"""Creates the variables of a compiled model and its optimizer before the first step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError


def build_model(model: tf.keras.Model, element_spec: Any) -> None:
    """Creates the variables of the model, if the specifications of its inputs are known.

    A model without `call`, such as a GAN whose train step calls its parts, counts as built if all
    of its layers are.

    Args:
      model: the compiled model.
      element_spec: the `element_spec` of the training dataset; None if unknown.

    Raises:
      UsageError: the model has no `call`, and a layer that is not built.
    """
    if not keras_compat.has_call(model):
        unbuilt = [layer.name for layer in model.layers if not layer.built]
        if unbuilt:
            raise UsageError(
                "model",
                received=f"{type(model).__name__}, which has no call, with {unbuilt[0]}, which has "
                "no weights yet",
                accepted="a model whose layers have their weights before the first step",
                remedy=f"Begin {unbuilt[0]} with tf.keras.Input, or call its build method.",
            )
        model.built = True
    inputs, _, _ = tf.keras.utils.unpack_x_y_sample_weight(element_spec)
    specs = tf.nest.flatten(inputs)
    # The `build` of a subclassed model of Keras 3 does not build its layers.
    is_built = model.built and all(layer.built for layer in model.layers)
    if not is_built and all(isinstance(spec, tf.TensorSpec) and spec.shape for spec in specs):
        model(zeros(inputs))


def build_optimizers(model: tf.keras.Model) -> None:
    """Creates the variables of a built model's optimizers, with slots for all trainable weights.

    Leaves this to Keras if the train step calls a layer that the model's `call` does not: its
    weights do not exist yet.
    """
    own = tf.keras.layers.Layer.build
    if any(not layer.built and type(layer).build is not own for layer in model.layers):
        return
    for optimizer in keras_compat.optimizers_of(model):
        # Under a strategy Keras 3 has built the model's optimizer, and would build a
        # LossScaleOptimizer twice.
        is_built = keras_compat.is_keras_3(model) and getattr(optimizer, "built", True)
        if model.built and not is_built and hasattr(optimizer, "build"):
            # A script with Keras 2 may have created the model outside the scope of its strategy.
            with model.distribute_strategy.scope():
                optimizer.build(model.trainable_variables)


def zeros(specs: Any, size: int = 1) -> Any:
    """Tensors of zeros for a structure of `tf.TensorSpec`.

    Args:
      specs: the specifications.
      size: the size of a dimension that is unknown.
    """

    def of_spec(spec: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([size if known is None else known for known in spec.shape], spec.dtype)

    return tf.nest.map_structure(of_spec, specs)
