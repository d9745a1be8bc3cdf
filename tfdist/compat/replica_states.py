"""Finds layers whose state differs between the replicas, such as a codebook of moving averages.

warn_of_own_states(model, variables, differ(values, means).numpy())    # before each is averaged
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import log

# More than the rounding of a mean of equal values, also in 16 bits.
_TOLERANCE = 0.01
_WARNED = "_tfdist_has_own_states"


def differ(values: Sequence[tf.Tensor], means: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether each value differs from its mean over the replicas: bool, shape [values]."""
    pairs = zip(values, means, strict=True)
    return tf.stack([tf.reduce_any(tf.abs(v - m) > _TOLERANCE * tf.abs(m)) for v, m in pairs])


def warn_of_own_states(
    model: Any, variables: Sequence[tf.Variable], differing: Iterable[Any]
) -> None:
    """Warns once about layers whose replicas assign their own values to a variable.

    The moving statistics of batch normalization do not count: no training step reads them.

    Args:
      model: the model.
      variables: non-trainable variables of the model.
      differing: for each of them, whether the values of the replicas differed.
    """
    layer_class = keras_compat.keras_of(model).layers.Layer
    owners = {
        id(variable): layer
        for layer in tf.train.TrackableView(model).descendants()
        if isinstance(layer, layer_class)
        for variable in keras_compat.as_tensorflow(layer.weights)
    }
    found = [owners.get(id(v)) for v, is_own in zip(variables, differing, strict=True) if is_own]
    names = {layer.name for layer in found if layer and not hasattr(layer, "moving_mean")}
    if names and _WARNED not in vars(model):
        vars(model)[_WARNED] = True
        log(
            f"warning: each replica assigns its own values to the state of layer {min(names)}, and "
            "tfdist averages them only at the end of an epoch, so the weights are not those of one "
            "process: average them in the layer, with an all-reduce over the replicas."
        )
