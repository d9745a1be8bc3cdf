"""Reads all sync-on-read variables in one all-reduce, so that only one task needs to save.

    with read_at_once(strategy, on_read_variables(model)):    # in every task
        if writes:
            checkpoint.save(path)

    use_own_values(True)                                      # in any task, from now on
    model.save(path)

    apply_to_metrics(model)                             # of Keras 2, before the training

Batch normalization's moving statistics and the variables of metrics are sync-on-read. TensorFlow
reduces each one separately, and three times per checkpoint: hundreds of small all-reduces in which
every task must take part, so every task must save. It also traces unused all-reduces while a model
is built, which takes a third of the build time. With Keras 2, each step reduces the variables of
each metric separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import SyncOnReadVariable

from tfdist.compat import keras as keras_compat
from tfdist.upstream.wrapped_variables import innermost
from tfdist.upstream.wrapping import apply_wrapper

_OPERATIONS = {tf.VariableAggregation.MEAN: "MEAN", tf.VariableAggregation.SUM: "SUM"}

_SCRATCH_GRAPH = "scratch_graph"

# Whether variables have the values of this task, for calls that the other tasks do not make.
_has_own_values = False
# The reduced values by the variable's id, inside `read_at_once`.
_values: dict[int, tf.Tensor] = {}
# The same, while a step computes the results of its metrics.
_values_of_step: dict[int, tf.Tensor] = {}
# The variables of the last `read_at_once`, and the function that reduces them, traced once.
_packed: tuple[list[tf.Variable], Any] = ([], None)


def on_read_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """The sync-on-read variables of a model and of the objects that it tracks, such as metrics."""
    tracked = tf.train.TrackableView(model).descendants()
    on_read = filter(is_on_read, [*keras_compat.as_tensorflow(model.variables), *tracked])
    return list({id(each): each for each in map(innermost, on_read)}.values())


@contextmanager
def read_at_once(
    strategy: tf.distribute.Strategy, variables: Iterable[tf.Variable]
) -> Iterator[None]:
    """In this block, one task can read the variables in cross-replica context without the others.

    A graph that is made in it reads the variables of this task's first replica. Every task of the
    strategy must enter it. The variables must not change in it.

    Args:
      strategy: the strategy of the variables.
      variables: variables of any kind; only means and sums over the replicas are affected.
    """
    reduced = [innermost(variable) for variable in variables if _is_reduced(variable)]
    try:
        if reduced:
            _reduce_at_once(strategy, reduced)
        with own_values(True):
            yield
    finally:
        _values.clear()


def set_to_averages(strategy: tf.distribute.Strategy, variables: Iterable[tf.Variable]) -> None:
    """Averages the variables that are means, in all replicas. Every task must call it."""
    means = [
        variable for variable in variables if variable.aggregation == tf.VariableAggregation.MEAN
    ]
    with read_at_once(strategy, means):
        for variable in map(innermost, means):
            for part in variable.values:
                part.assign(_values[id(variable)])


def use_own_values(is_alone: bool) -> None:
    """Sets whether cross-replica context sees the values of this task's first replica alone."""
    global _has_own_values
    _has_own_values = is_alone


@contextmanager
def own_values(is_alone: bool) -> Iterator[None]:
    """`use_own_values` for a context."""
    before = _has_own_values
    use_own_values(is_alone)
    try:
        yield
    finally:
        use_own_values(before)


def apply_to_metrics(model_class: Any) -> None:
    """Makes each step of Keras 2 models reduce the variables of all metrics together.

    Args:
      model_class: `tf.keras.Model`.
    """
    apply_wrapper(model_class, "get_metrics_result", _reduced_metrics)


def _reduced_metrics(results: Callable[[Any], Any], model: Any) -> Any:
    context = tf.distribute.get_replica_context()
    if context is None or _has_own_values:
        return results(model)
    shapes = [
        (each, each.shape)
        for each in map(innermost, filter(_is_reduced, keras_compat.metric_variables(model)))
        if each.shape.is_fully_defined()
    ]
    try:
        _values_of_step.update(_reduced_in_replica(context, shapes))
        return results(model)
    finally:
        _values_of_step.clear()


def are_averages(variables: Iterable[tf.Variable]) -> bool:
    """Whether all sync-on-read variables among `variables` are means over the replicas."""
    on_read = filter(is_on_read, variables)
    return all(variable.aggregation == tf.VariableAggregation.MEAN for variable in on_read)


def is_on_read(variable: Any) -> bool:
    """Whether each replica has its own value of a variable, and reading reduces these values."""
    return isinstance(variable, SyncOnReadVariable)


def _is_reduced(variable: Any) -> bool:
    return is_on_read(variable) and variable.aggregation in _OPERATIONS


def _reduce_at_once(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> None:
    global _packed
    if list(map(id, variables)) != list(map(id, _packed[0])):
        _packed = variables, _reducing(strategy, variables)
    _values.update(zip(map(id, variables), _packed[1](), strict=True))


def _reducing(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> Any:
    """A function that returns the reduced values."""
    shapes = [(variable, variable.values[0].read_value().shape) for variable in variables]

    def in_replica() -> list[tf.Tensor]:
        values = _reduced_in_replica(tf.distribute.get_replica_context(), shapes)
        return [values[id(variable)] for variable in variables]

    def reduce() -> list[tf.Tensor]:
        return [strategy.experimental_local_results(each)[0] for each in strategy.run(in_replica)]

    return tf.function(reduce, autograph=False)


def _reduced_in_replica(
    context: Any, shapes: Sequence[tuple[tf.Variable, tf.TensorShape]]
) -> dict[int, tf.Tensor]:
    """The reduced values by the variable's id; reduces one vector for each kind."""
    kinds: dict[tuple[str, str], list[tuple[tf.Variable, tf.TensorShape]]] = {}
    for variable, shape in shapes:
        kind = _OPERATIONS[variable.aggregation], variable.dtype.name
        kinds.setdefault(kind, []).append((variable, shape))
    values: dict[int, tf.Tensor] = {}
    # In the same order in all tasks.
    for operation, dtype in sorted(kinds):
        members = kinds[operation, dtype]
        flat = [tf.reshape(variable.read_value(), [-1]) for variable, _ in members]
        reduced = context.merge_call(
            lambda strategy, value, operation: strategy.reduce(operation, value, axis=None),
            args=(tf.concat(flat, 0), operation),
        )
        parts = tf.split(reduced, [shape.num_elements() for _, shape in members])
        for (variable, shape), part in zip(members, parts, strict=True):
            values[id(variable)] = tf.reshape(part, shape)
    return values


def value_of(variable: SyncOnReadVariable) -> tf.Tensor:
    """The value of a sync-on-read variable; in `read_at_once` faster than `read_value`."""
    value = _values.get(id(variable))
    return variable.read_value() if value is None else value


def _read(reduce: Callable[..., Any], variable: SyncOnReadVariable) -> Any:
    if id(variable) in _values_of_step:
        return _values_of_step[id(variable)]
    if tf.executing_eagerly() and id(variable) in _values:
        return _values[id(variable)]
    if _has_own_values:
        return variable.values[0].read_value()
    return variable.values[0].value() if _is_in_scratch_graph() else reduce(variable)


def _is_in_scratch_graph() -> bool:
    """Whether this is the graph in which Keras infers the shapes of a layer's outputs."""
    if tf.executing_eagerly():
        return False
    return _SCRATCH_GRAPH in getattr(tf.compat.v1.get_default_graph(), "name", "")


def _assign(
    method: str, assign: Callable[..., Any], variable: SyncOnReadVariable, /, *args: Any, **kw: Any
) -> Any:
    is_across = not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context()
    if is_across and (_has_own_values or _is_in_scratch_graph()):
        return getattr(variable.values[0], method)(*args, **kw)
    return assign(variable, *args, **kw)


def apply() -> None:
    """Patches sync-on-read variables; also removes the unused all-reduces of a model's build."""
    apply_wrapper(SyncOnReadVariable, "_get_cross_replica", _read)
    for name in ("assign", "assign_add", "assign_sub"):
        apply_wrapper(SyncOnReadVariable, name, partial(_assign, name))
