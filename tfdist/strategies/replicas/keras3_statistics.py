"""Keeps the moving statistics of a Keras 3 model valid on empty batches.

An empty batch, which a replica gets if others have more data, would make them NaN. Keras 2 handles
this itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import replace


def keep_on_empty_batches(model: Any) -> None:
    """Changes the layers of batch normalization of a Keras 3 model, before its first step."""
    normalization = keras_compat.keras_of(model).layers.BatchNormalization
    for layer in tf.train.TrackableView(model).descendants():
        # Synchronized ones are valid in a replica without examples.
        if isinstance(layer, normalization) and not layer.synchronized:
            replace(layer, "_moments", _moments_of_examples(layer))


def _moments_of_examples(layer: Any) -> Callable[..., tuple[Any, Any]]:
    """Wraps `BatchNormalization._moments`: an empty batch returns the moving statistics."""
    moments = layer._moments

    def call(inputs: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        mean, variance = moments(inputs, *arguments, **options)
        has_examples = tf.size(inputs) > 0
        return (
            tf.where(has_examples, mean, tf.cast(layer.moving_mean, mean.dtype)),
            tf.where(has_examples, variance, tf.cast(layer.moving_variance, variance.dtype)),
        )

    return call
