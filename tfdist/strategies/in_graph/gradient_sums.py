"""Sums of gradients, which are tensors, or rows of an embedding's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def total(gradients: Sequence[Any]) -> tf.Tensor | tf.IndexedSlices | None:
    """The sum of the gradients of one variable; None if there are none.

    Args:
      gradients: each is a `tf.Tensor` of the variable's shape, `tf.IndexedSlices`, or None.

    Returns:
      `tf.IndexedSlices` with the rows of all gradients if all of them are rows.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    if len(given) < 2:
        return given[0] if given else None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in given):
        return tf.IndexedSlices(
            tf.concat([gradient.values for gradient in given], axis=0),
            tf.concat([gradient.indices for gradient in given], axis=0),
            given[0].dense_shape,
        )
    return tf.add_n([tf.convert_to_tensor(gradient) for gradient in given])
