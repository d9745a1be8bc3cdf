"""Averages of variables that are synchronised when they are read: all of them in one all-reduce.

    with averaged_at_once(strategy, model.variables):    # in every task
        checkpoint.save(path)

The moving statistics of batch normalization are such variables. TensorFlow averages each by itself,
and three times while a checkpoint is saved: hundreds of small all-reduces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import SyncOnReadVariable

_MEAN = tf.VariableAggregation.MEAN

# By the variable's id, while the block of `averaged_at_once` runs.
_averages: dict[int, tf.Tensor] = {}
# The variables of the last block, and the function that packs them: traced once for a training.
_packed: tuple[list[tf.Variable], Any] = ([], None)


@contextmanager
def averaged_at_once(
    strategy: tf.distribute.Strategy, variables: Iterable[tf.Variable]
) -> Iterator[None]:
    """While the block runs, reading the variables outside of a replica takes no all-reduce.

    Collective over the strategy's tasks. The variables must not change within the block.

    Args:
      strategy: the one that they were created under.
      variables: of any kind; those that are not averages are left alone.
    """
    averaged = [variable for variable in variables if _is_average(variable)]
    try:
        if averaged:
            _average(strategy, averaged)
        yield
    finally:
        _averages.clear()


def are_at_hand(variables: Iterable[tf.Variable]) -> bool:
    """Whether one task reads all of them without the others while `averaged_at_once` runs."""
    return all(map(_is_average, filter(_is_on_read, variables)))


def _is_on_read(variable: Any) -> bool:
    return isinstance(variable, SyncOnReadVariable)


def _is_average(variable: Any) -> bool:
    return _is_on_read(variable) and variable.aggregation == _MEAN


def _average(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> None:
    global _packed
    if list(map(id, variables)) != list(map(id, _packed[0])):
        _packed = variables, _packing(strategy, variables)
    for dtype, packed in _packed[1]().items():
        reduced = strategy.reduce("MEAN", packed, axis=None)
        alike = [variable for variable in variables if variable.dtype.name == dtype]
        parts = tf.split(reduced, [variable.shape.num_elements() for variable in alike])
        for variable, part in zip(alike, parts, strict=True):
            _averages[id(variable)] = tf.reshape(part, variable.shape)


def _packing(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> Any:
    """A function that gives each replica's values, one vector for each dtype by its name."""

    def pack() -> dict[str, tf.Tensor]:
        values: dict[str, list[tf.Tensor]] = {}
        for variable in variables:
            flat = tf.reshape(variable.read_value(), [-1])
            values.setdefault(variable.dtype.name, []).append(flat)
        return {dtype: tf.concat(found, 0) for dtype, found in sorted(values.items())}

    # MultiWorkerMirroredStrategy warns of running anything that is not a tf.function.
    return tf.function(lambda: strategy.run(pack))


def _read(variable: SyncOnReadVariable) -> Any:
    average = _averages.get(id(variable)) if tf.executing_eagerly() else None
    return _reduce(variable) if average is None else average


_reduce = SyncOnReadVariable._get_cross_replica
SyncOnReadVariable._get_cross_replica = _read
