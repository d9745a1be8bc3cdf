"""Reduces the results of all metrics of a Keras 3 step in one all-reduce.

Keras 3 reduces each result on its own: in a job of several tasks, one collective operation per
metric.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Changes the function of Keras; a second call changes nothing."""
    trainer: Any = importlib.import_module("keras.src.backend.tensorflow.trainer")
    apply_wrapper(trainer, "reduce_per_replica", _reduce_together)


def _reduce_together(reduce: Callable[..., Any], values: Any, strategy: Any, reduction: str) -> Any:
    results = tf.nest.flatten(values)
    firsts = [strategy.experimental_local_results(result)[0] for result in results]
    # A train step of the user may return anything.
    are_scalars = all(tf.is_tensor(first) and first.shape.rank == 0 for first in firsts)
    if reduction != "auto" or not are_scalars or len({first.dtype for first in firsts}) != 1:
        return reduce(values, strategy, reduction)
    stacked = strategy.run(tf.stack, args=(results,))
    means = tf.unstack(reduce(stacked, strategy, reduction))
    return tf.nest.pack_sequence_as(values, means)
