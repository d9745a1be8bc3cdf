"""Gives a weighed step the denominator of each loss; see `tfdist.compat.denominators`.

    weigh(model, Settings(batch_size=8, replicas=2, …))      # before the first step is traced

Keras divides the loss of a replica by a denominator of that replica, such as the number of its
examples, and has no API for it. If the denominators differ, the mean of the replicas' losses is
not the loss of the whole batch.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import denominators
from tfdist.compat import keras as keras_compat
from tfdist.compat.denominators import MEAN, SUM, saw_loss
from tfdist.compat.replaced import replace
from tfdist.upstream import autograph
from tfdist.upstream.wrapping import apply_wrapper

_WAITS = "_tfdist_waits"
# Keras 2 names the reductions of losses so; metrics have others.
_KERAS_2_REDUCTIONS = {"auto": MEAN, "sum_over_batch_size": MEAN, "sum": SUM}


def weigh(model: Any, settings: denominators.Settings) -> bool:
    """Gives the train step and the test step of a compiled model their denominators.

    Args:
      model: the model; one that is weighed already does not change.
      settings: those of its steps; `has_other_losses` is set here.

    Returns:
      Whether the model has changed.
    """
    if hasattr(model, denominators.SETTINGS):
        return False
    apply(keras_compat.keras_of(model).Model)
    settings = dataclasses.replace(
        settings,
        has_other_losses=functools.partial(has_other_losses, model),
        sums=settings.sums and functools.partial(keeping_losses, model, settings.sums),
    )
    replace(model, denominators.SETTINGS, settings)
    replace(model, "train_step", functools.partial(_call, model, model.train_step, False))
    replace(model, "test_step", functools.partial(_call, model, model.test_step, True))
    replace(model, "compute_loss", functools.partial(_compute_loss, model.compute_loss))
    replace(model, "get_metrics_result", functools.partial(_results, model.get_metrics_result))
    return True


def is_weighed(train_step: Any) -> bool:
    """Whether `weigh` has made a train step."""
    return isinstance(train_step, functools.partial) and train_step.func is _call


def _call(model: Any, own: Callable[[Any], Any], evaluates: bool, data: Any) -> Any:
    return _in_step(model, autograph.converted(own), evaluates, data)


@tf.autograph.experimental.do_not_convert
def _in_step(model: Any, converted: Callable[[Any], Any], evaluates: bool, data: Any) -> Any:
    for tracker in loss_trackers(model):
        _let_wait(tracker)
    with denominators.step_of(model, data, evaluates=evaluates):
        return _flat(converted(data))


def _flat(logs: Any) -> Any:
    """The logs of a step, without dicts in them, which are the metrics of `compile` in Keras 3.

    At the end of an epoch, Keras 3 reads all metrics if the logs have their names. Else it takes
    the mean of the replicas' logs, which differ in their numbers of examples.
    """
    if not isinstance(logs, dict):
        return logs
    parts = (each if isinstance(each, dict) else {name: each} for name, each in logs.items())
    return {name: value for part in parts for name, value in part.items()}


@tf.autograph.experimental.do_not_convert
def _compute_loss(own: Callable[..., Any], *args: Any, **options: Any) -> Any:
    loss = autograph.converted(own)(*args, **options)
    if (step := denominators.current()) is not None:
        step.summed_loss = loss
    return loss


@tf.autograph.experimental.do_not_convert
def _results(own: Callable[[], Any]) -> Any:
    step = denominators.current()
    if step is not None:
        step.settle()
    return own()


def _let_wait(tracker: Any) -> None:
    """Delays updates of the mean loss until the denominators of all replicas are known, or until
    the step reads the result."""
    if _WAITS in vars(tracker):
        return
    update = tracker.update_state

    @tf.autograph.experimental.do_not_convert
    def wait(values: Any, sample_weight: Any = None) -> Any:
        step = denominators.current()
        if step is None:
            return update(values, sample_weight=sample_weight)
        if values is step.summed_loss:
            values = values * tf.distribute.get_strategy().num_replicas_in_sync
        step.waiting.append((update, values, sample_weight))
        return None

    replace(tracker, "update_state", wait)
    replace(tracker, "result", functools.partial(_results, tracker.result))
    replace(tracker, _WAITS, True)


def apply(model_class: Any) -> None:
    """Changes the function of Keras that knows the mask and the reduction of a loss.

    A second call changes nothing.

    Args:
      model_class: `tf.keras.Model`, of the Keras to change.
    """
    root = model_class.__module__.split(".")[0]
    if keras_compat.is_keras_3(model_class):
        losses: Any = importlib.import_module(f"{root}.src.losses.loss")
        apply_wrapper(losses, "reduce_weighted_values", functools.partial(_of_keras_3, losses))
    else:
        utils: Any = importlib.import_module(f"{root}.src.utils.losses_utils")
        apply_wrapper(utils, "apply_valid_mask", _of_keras_2)


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


def _of_keras_3(
    losses: Any,
    reduce: Callable[..., Any],
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


def _of_keras_2(
    apply_mask: Callable[..., Any], losses: Any, sw: Any, mask: Any, reduction: str
) -> Any:
    weights = apply_mask(losses, sw, mask, reduction)
    if reduction not in _KERAS_2_REDUCTIONS:  # Metrics call it, too.
        return weights
    factor = saw_loss(losses, _KERAS_2_REDUCTIONS[reduction], mask, None)
    if not tf.is_tensor(factor) and factor == 1:
        return weights
    factor = tf.cast(factor, losses.dtype)
    return factor if weights is None else factor * tf.cast(weights, losses.dtype)
