"""Corrects Keras 3 losses with several replicas: scalar losses and empty batches.

Keras 3 sums losses over the replicas. It divides a mean that it computes itself by the number of
replicas, but not a scalar that a loss function returns; Keras 2 divides both. The mean over an
empty batch is NaN.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper

# The reductions that take a mean over examples.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def apply() -> None:
    """Divides scalar losses by the number of replicas, and makes losses of empty batches 0."""
    losses: Any = importlib.import_module("keras.src.losses.loss")

    def divide_scalars(
        reduce: Callable[..., Any],
        values: Any,
        sample_weight: Any = None,
        reduction: str | None = _MEANS[0],
    ) -> Any:
        reduced = reduce(values, sample_weight, reduction)
        if tuple(values.shape) == () and reduction in _MEANS:
            reduced = losses.scale_loss_for_distribution(reduced)
        return reduced

    def zero_if_empty(
        compute: Callable[..., Any], loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> Any:
        value = compute(loss, y_true, y_pred, sample_weight)
        if tuple(value.shape) == ():
            has_examples = tf.size(tf.nest.flatten(y_pred)[0]) > 0
            value = tf.where(has_examples, value, tf.zeros_like(value))
        return value

    apply_wrapper(losses, "reduce_values", divide_scalars)
    apply_wrapper(losses.Loss, "__call__", zero_if_empty)
