"""Losses of Keras 3 over replicas: scalar losses, and batches without examples.

Keras 3 divides a loss by the number of replicas if it takes the mean itself, and then sums. It does
not divide a scalar that a loss function returns, as Keras 2 does. And the mean over a batch without
examples is not a number.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import tensorflow as tf

# The reductions of a loss over examples; each replica's is its part of the whole.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def apply() -> None:
    """Divides scalar losses by the number of replicas, and makes those of no example 0."""
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
    lose = losses.Loss.__call__

    @functools.wraps(lose)
    def of_examples(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        lost = lose(loss, y_true, y_pred, sample_weight)
        if tuple(lost.shape) == ():
            has_examples = tf.size(tf.nest.flatten(y_pred)[0]) > 0
            lost = tf.where(has_examples, lost, tf.zeros_like(lost))
        return lost

    losses.Loss.__call__ = of_examples
