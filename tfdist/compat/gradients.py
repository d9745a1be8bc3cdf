"""Gradients as lists of tensors, `tf.IndexedSlices` and None: their shapes, and their products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def with_shapes(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Gives dense gradients the static shapes of their variables; a product of tensors loses these
    if a dimension is unknown. Returns other gradients unchanged."""
    found: list[Any] = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is not None and not isinstance(gradient, tf.IndexedSlices):
            gradient = tf.convert_to_tensor(gradient)
            gradient.set_shape(variable.shape)
        found.append(gradient)
    return found


def scaled(gradients: Sequence[Any], factor: tf.Tensor) -> list[Any]:
    """The gradients times a factor; a factor of 0 gives 0, even for gradients that are not finite.

    Args:
      gradients: tensors, `tf.IndexedSlices`, or None.
      factor: shape []; if it is 1, nothing is computed.
    """
    static = tf.get_static_value(factor)
    if static == 1:
        return list(gradients)
    dense = [
        each.values if isinstance(each, tf.IndexedSlices) else each
        for each in gradients
        if each is not None
    ]

    def product() -> list[tf.Tensor]:
        return [tf.math.multiply_no_nan(each, tf.cast(factor, each.dtype)) for each in dense]

    # Full batches, which are the rule, cost no pass over the gradients.
    values = product() if static is not None else tf.cond(factor == 1, lambda: dense, product)
    left = iter(values)
    return [
        each
        if each is None
        else tf.IndexedSlices(next(left), each.indices, each.dense_shape)
        if isinstance(each, tf.IndexedSlices)
        else next(left)
        for each in gradients
    ]


def distinct(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sums the rows with equal indices, so that each index occurs once."""
    indices, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
