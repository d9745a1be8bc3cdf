"""Sums of gradients, which are tensors, or rows of an embedding's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.backprop_util import AggregateIndexedSlicesGradients


def total(gradients: Sequence[Any]) -> tf.Tensor | tf.IndexedSlices | None:
    """The sum of the gradients of one variable; None if there are none.

    Args:
      gradients: each is a `tf.Tensor` of the variable's shape, `tf.IndexedSlices`, or None.

    Returns:
      `tf.IndexedSlices` with the rows of all gradients if all of them are rows.
    """
    given = [gradient for gradient in gradients if gradient is not None]
    found: tf.Tensor | tf.IndexedSlices | None = AggregateIndexedSlicesGradients(given)
    return found
