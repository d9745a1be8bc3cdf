"""Lets metrics only add to their states, so that several replicas give the result of one.

    require_additions(model, "mirrored", shares_variables=False)   # before train_function is traced

TensorFlow sums the states of replicas: a metric that keeps the largest value would be doubled by
two replicas, without any warning. Where replicas share a state, an assignment of the old value plus
another one would count the old value several times, or lose what another replica has added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.additions import addend
from tfdist.compat.replaced import replace
from tfdist.errors import UsageError

# The names of Keras 3 and of TensorFlow.
_SUMMED = ("sum", tf.VariableAggregation.SUM)


def require_additions(model: Any, strategy: str, *, shares_variables: bool) -> None:
    """Makes the metrics of a compiled model check their assignments when a step is traced.

    In the step, `assign` raises a UsageError for anything but a constant or the old value plus a
    value that does not depend on it. Where replicas share a state,
    `assign` is replaced by an addition of that value.

    Args:
      model: a compiled model.
      strategy: the name of the strategy.
      shares_variables: whether the replicas share the states. Otherwise, a state is not checked
        if its aggregation is not a sum.
    """
    # The metrics before those that contain them.
    for metric in sorted(_metrics_of(model), key=lambda metric: len(metric.variables)):
        for variable in metric.variables:
            is_summed = getattr(variable, "aggregation", None) in _SUMMED
            if (shares_variables or is_summed) and "assign" not in vars(variable):
                error = partial(_not_an_addition, metric.name, strategy, shares_variables)
                replace(variable, "assign", _checked(variable, error, adds=shares_variables))


def states_of(model: Any) -> list[tf.Variable]:
    """The states of the metrics of a compiled model."""
    return keras_compat.as_tensorflow(v for each in _metrics_of(model) for v in each.variables)


def _metrics_of(model: Any) -> list[Any]:
    """The metrics of a compiled model, also those that it builds in its first step."""
    metric_class = keras_compat.keras_of(model).metrics.Metric
    holders = [*model.metrics, getattr(model, "compiled_metrics", None)]
    inside = [vars(each) for each in holders if each is not None]
    return [each for each in _leaves([holders, inside]) if isinstance(each, metric_class)]


def _leaves(structure: Any) -> Iterator[Any]:
    """The values in nested lists and dicts; unlike in `tf.nest`, keys need not be sortable."""
    if isinstance(structure, dict):
        structure = list(structure.values())
    if isinstance(structure, (list, tuple)):
        for part in structure:
            yield from _leaves(part)
    else:
        yield structure


def _checked(variable: Any, error: Callable[[], UsageError], *, adds: bool) -> Callable[..., Any]:
    assign = variable.assign

    @tf.autograph.experimental.do_not_convert
    def checked(value: Any, *args: Any, **options: Any) -> Any:
        own, tensor = keras_compat.as_tensorflow([variable, value])
        if not tf.is_symbolic_tensor(tensor) or tf.get_static_value(tensor) is not None:
            return assign(value, *args, **options)
        added = addend(tensor, own)
        if added is None:
            raise error()
        if adds:
            return own.assign_add(tf.broadcast_to(tf.cast(added, own.dtype), own.shape))
        return assign(value, *args, **options)

    return checked


def _not_an_addition(metric: str, strategy: str, shares_variables: bool) -> UsageError:
    reason, other = "share it", ""
    if not shares_variables:
        reason = "have states that are summed"
        other = " another aggregation in add_variable (Keras 3) or add_weight (Keras 2),"
    return UsageError(
        "metric",
        received=f"{metric}, whose update_state assigns something else than its state plus a value",
        accepted=f"a metric that adds to its state, under {strategy}, whose replicas {reason}",
        remedy=f"Use assign_add,{other} or compute the metric in a callback.",
    )
