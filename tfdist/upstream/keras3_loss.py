"""Corrects Keras 3 losses with several replicas: scalar losses and empty batches.

Keras 3 sums losses over the replicas. It divides a mean that it computes itself by the number of
replicas, but not a scalar that a loss function returns; Keras 2 divides both. The mean over an
empty batch is NaN.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import tensorflow as tf

# The reductions that take a mean over examples.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def apply() -> None:
    """Divides scalar losses by the number of replicas, and makes losses of empty batches 0."""
    losses: Any = importlib.import_module("keras.src.losses.loss")
    reduce_values = losses.reduce_values
    if hasattr(reduce_values, "__wrapped__"):
        return

    @functools.wraps(reduce_values)
    def call(values: Any, sample_weight: Any = None, reduction: str | None = _MEANS[0]) -> Any:
        reduced = reduce_values(values, sample_weight, reduction)
        if tuple(values.shape) == () and reduction in _MEANS:
            reduced = losses.scale_loss_for_distribution(reduced)
        return reduced

    losses.reduce_values = call
    compute = losses.Loss.__call__

    @functools.wraps(compute)
    def zero_if_empty(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        value = compute(loss, y_true, y_pred, sample_weight)
        if tuple(value.shape) == ():
            has_examples = tf.size(tf.nest.flatten(y_pred)[0]) > 0
            value = tf.where(has_examples, value, tf.zeros_like(value))
        return value

    losses.Loss.__call__ = zero_if_empty
