"""Scopes for tracing the functions that run on workers.

    with scheduled(strategy):
        concrete = tf.function(step).get_concrete_function(spec)

One thread traces, the one that calls Keras's `fit`. TensorFlow's op definitions are shared by all
threads, and two threads that trace at the same time have crashed the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx


@contextmanager
def scheduled(strategy: Any) -> Iterator[None]:
    """The scope for tracing the steps of a worker.

    Keras creates variables and calls `strategy.run` while it traces, which TensorFlow allows only
    in functions that its coordinator schedules.
    """
    with strategy.scope():
        strategy.extended._being_scheduled = True
        try:
            yield
        finally:
            strategy.extended._being_scheduled = False


def converting() -> AbstractContextManager[Any]:
    """The scope for calls that AutoGraph converts, within a function that it does not convert.

    A user's function may have an `if` on a tensor.
    """
    scope: AbstractContextManager[Any] = ag_ctx.ControlStatusCtx(ag_ctx.Status.UNSPECIFIED)
    return scope


def number_of_worker() -> Any:
    """The index of the worker that runs a function: int64, shape []; 0 outside of workers."""
    if getattr(tf.distribute.get_strategy().extended, "_being_scheduled", False):
        return tf.distribute.coordinator.experimental_get_current_worker_index()
    return 0
