"""Tells a weighed step by what Keras divides each loss; see `tfdist.compat.denominators`.

    apply(tf.keras.Model)      # before the first step is traced

Keras divides the loss of a replica by what that replica has, and has no API for it. The mean of
these means is not that of the whole batch if replicas have different numbers.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.denominators import MEAN, SUM, saw_loss


def apply(model_class: Any) -> None:
    """Changes the function of Keras that knows the mask and the reduction of a loss.

    A second call changes nothing.

    Args:
      model_class: `tf.keras.Model`, of the Keras to change.
    """
    root = model_class.__module__.split(".")[0]
    if keras_compat.is_keras_3(model_class):
        losses: Any = importlib.import_module(f"{root}.src.losses.loss")
        if not hasattr(losses.reduce_weighted_values, "__wrapped__"):
            losses.reduce_weighted_values = _of_keras_3(losses)
        return
    utils: Any = importlib.import_module(f"{root}.src.utils.losses_utils")
    if not hasattr(utils.apply_valid_mask, "__wrapped__"):
        utils.apply_valid_mask = _of_keras_2(utils)


def loss_trackers(model: Any) -> list[Any]:
    """The metrics of a compiled model in which Keras keeps the means of its losses."""
    if keras_compat.is_keras_3(model):
        compiled = model._compile_loss
        found = [model._loss_tracker, *(compiled.metrics if compiled is not None else ())]
    else:
        compiled = model.compiled_loss
        found = [compiled._total_loss_mean] if compiled._losses is not None else []
    return [metric for metric in found if metric is not None]


def has_other_losses(model: Any) -> bool:
    """Whether a compiled model has several outputs, or its forward pass has added losses."""
    if keras_compat.is_keras_3(model):
        return len(loss_trackers(model)) > 2 or any(_added_losses(model))
    return len(tf.nest.flatten(model.compiled_loss._losses)) > 1 or any(_added_losses(model))


def keeping_losses(
    model: Any, sums: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor
) -> tf.Tensor:
    """Sums a tensor over replicas; the layers of Keras 3 keep the losses of this replica.

    While a replica waits for the sum, the forward pass of another one replaces them.
    """
    before = [list(each) for each in _added_losses(model)]
    total = sums(value)
    for losses, own in zip(_added_losses(model), before, strict=True):
        losses[:] = own
    return total


def _added_losses(model: Any) -> list[list[Any]]:
    name = "_losses" if keras_compat.is_keras_3(model) else "_eager_losses"
    return [getattr(layer, name) for layer in model._flatten_layers()]


def _of_keras_3(losses: Any) -> Any:
    reduce = losses.reduce_weighted_values

    @functools.wraps(reduce)
    def call(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = reduce(values, sample_weight, mask, reduction, dtype)
        if reduction in (None, "none"):
            return loss
        weights = None
        if reduction == "mean_with_sample_weight":
            weights = losses.apply_mask(sample_weight, mask, values.dtype, reduction)
        factor = saw_loss(values, SUM if reduction == "sum" else MEAN, mask, weights)
        return loss * tf.cast(factor, loss.dtype)

    return call


def _of_keras_2(utils: Any) -> Any:
    apply_mask = utils.apply_valid_mask
    reductions = {
        utils.ReductionV2.AUTO: MEAN,
        utils.ReductionV2.SUM_OVER_BATCH_SIZE: MEAN,
        utils.ReductionV2.SUM: SUM,
    }

    @functools.wraps(apply_mask)
    def call(losses: Any, sw: Any, mask: Any, reduction: str) -> Any:
        weights = apply_mask(losses, sw, mask, reduction)
        if reduction not in reductions:  # Metrics call it, too.
            return weights
        factor = saw_loss(losses, reductions[reduction], mask, None)
        if not tf.is_tensor(factor) and factor == 1:
            return weights
        factor = tf.cast(factor, losses.dtype)
        return factor if weights is None else factor * tf.cast(weights, losses.dtype)

    return call
