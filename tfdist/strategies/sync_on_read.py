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
    averaged = [v for v in variables if _is_average(v)]
    for dtype in {variable.dtype for variable in averaged}:
        _average(strategy, [variable for variable in averaged if variable.dtype == dtype])
    try:
        yield
    finally:
        _averages.clear()


def _is_average(variable: Any) -> bool:
    return isinstance(variable, SyncOnReadVariable) and variable.aggregation == _MEAN


def _average(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> None:
    def all_in_one() -> tf.Tensor:
        return tf.concat([tf.reshape(v.read_value(), [-1]) for v in variables], 0)

    # A function, because MultiWorkerMirroredStrategy warns of running anything else.
    values = tf.function(lambda: strategy.run(all_in_one))()
    reduced = strategy.reduce("MEAN", values, axis=None)
    parts = tf.split(reduced, [variable.shape.num_elements() for variable in variables])
    for variable, part in zip(variables, parts, strict=True):
        _averages[id(variable)] = tf.reshape(part, variable.shape)


def _read(variable: SyncOnReadVariable) -> Any:
    average = _averages.get(id(variable)) if tf.executing_eagerly() else None
    return _reduce(variable) if average is None else average


_reduce = SyncOnReadVariable._get_cross_replica
SyncOnReadVariable._get_cross_replica = _read
