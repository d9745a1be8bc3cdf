"""Variables that are synchronised when they are read: those of a kind in one all-reduce.

    with read_at_once(strategy, on_read_variables(model)):    # in every task
        if writes:
            checkpoint.save(path)

The moving statistics of batch normalization are such variables, and those of metrics. TensorFlow
reduces each by itself, and three times while a checkpoint is saved: hundreds of small all-reduces,
in which every task has to take part, and so all of them save. Also while a model is made, it traces
all-reduces that nobody will run, which takes a third of that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import SyncOnReadVariable

from tfdist.compat import keras as keras_compat

_OPERATIONS = {tf.VariableAggregation.MEAN: "MEAN", tf.VariableAggregation.SUM: "SUM"}

_SCRATCH_GRAPH = "scratch_graph"

# By the variable's id, while the block of `read_at_once` runs.
_values: dict[int, tf.Tensor] = {}
# The variables of the last block, and the function that packs them: traced once for a training.
_packed: tuple[list[tf.Variable], Any] = ([], None)


def on_read_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Those of a model and of what is saved with it, such as metrics."""
    tracked = tf.train.TrackableView(model).descendants()
    found = filter(_is_on_read, [*keras_compat.as_tensorflow(model.variables), *tracked])
    return list({id(variable): variable for variable in map(_inner, found)}.values())


@contextmanager
def read_at_once(
    strategy: tf.distribute.Strategy, variables: Iterable[tf.Variable]
) -> Iterator[None]:
    """While the block runs, a task reads the variables outside of a replica without the others.

    Collective over the strategy's tasks. The variables must not change within the block.

    Args:
      strategy: the one that they were created under.
      variables: of any kind; those that are not means or sums over the replicas are left alone.
    """
    reduced = [_inner(variable) for variable in variables if _is_reduced(variable)]
    try:
        if reduced:
            _reduce_at_once(strategy, reduced)
        yield
    finally:
        _values.clear()


def are_averages(variables: Iterable[tf.Variable]) -> bool:
    """Whether those that are synchronised when they are read are all means over the replicas."""
    on_read = filter(_is_on_read, variables)
    return all(variable.aggregation == tf.VariableAggregation.MEAN for variable in on_read)


def _is_on_read(variable: Any) -> bool:
    return isinstance(variable, SyncOnReadVariable)


def _is_reduced(variable: Any) -> bool:
    return _is_on_read(variable) and variable.aggregation in _OPERATIONS


def _inner(variable: Any) -> Any:
    """What is saved of a variable that Keras 2 wraps for mixed precision; else the variable."""
    # Its other attributes are looked up in its value over the replicas.
    return vars(variable).get("_variable", variable)


def _shape(variable: SyncOnReadVariable) -> tf.TensorShape:
    has_one = variable.shape.is_fully_defined()
    return variable.shape if has_one else variable._primary.read_value().shape


def _kind(variable: tf.Variable) -> tuple[str, str]:
    """What those that are reduced together have in common."""
    return _OPERATIONS[variable.aggregation], variable.dtype.name


def _reduce_at_once(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> None:
    global _packed
    if list(map(id, variables)) != list(map(id, _packed[0])):
        _packed = variables, _packing(strategy, variables)
    for (operation, dtype), packed in _packed[1]().items():
        reduced = strategy.reduce(operation, packed, axis=None)
        alike = [variable for variable in variables if _kind(variable) == (operation, dtype)]
        shapes = [_shape(variable) for variable in alike]
        parts = tf.split(reduced, [shape.num_elements() for shape in shapes])
        for variable, shape, part in zip(alike, shapes, parts, strict=True):
            _values[id(variable)] = tf.reshape(part, shape)


def _packing(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> Any:
    """A function that gives each replica's values, one vector for each kind."""

    def pack() -> dict[tuple[str, str], tf.Tensor]:
        values: dict[tuple[str, str], list[tf.Tensor]] = {}
        for variable in variables:
            flat = tf.reshape(variable.read_value(), [-1])
            values.setdefault(_kind(variable), []).append(flat)
        return {kind: tf.concat(found, 0) for kind, found in sorted(values.items())}

    # MultiWorkerMirroredStrategy warns of running anything that is not a tf.function.
    return tf.function(lambda: strategy.run(pack))


def _read(variable: SyncOnReadVariable) -> Any:
    if tf.executing_eagerly():
        value = _values.get(id(variable))
        return _reduce(variable) if value is None else value
    # In such a graph Keras finds the shapes of a layer's outputs, and then throws it away.
    if _SCRATCH_GRAPH in getattr(tf.compat.v1.get_default_graph(), "name", ""):
        return variable._primary.value()
    return _reduce(variable)


_reduce = SyncOnReadVariable._get_cross_replica


def apply() -> None:
    """Lets `read_at_once` have an effect, and Keras find the shapes of such a model's layers."""
    SyncOnReadVariable._get_cross_replica = _read
