"""Makes a step wait for its batch, so that nothing of it runs after the end of the data.

In a `tf.function` that reads a batch and calls `tf.distribute.Strategy.run`, an operation of the
step waits only for the batch if it uses it. Keras finds the end of data of unknown cardinality in
such a call: the optimizer counted one update more in each epoch, random generators moved on, and
metrics counted a batch of static shape.
"""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf


def apply() -> None:
    """Changes `tf.distribute.Strategy.run`; a second call changes nothing."""
    original = tf.distribute.Strategy.run
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def run(self: Any, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        # Strategies recognize a `tf.function`.
        if tf.executing_eagerly() or isinstance(fn, tf.types.experimental.GenericFunction):
            return original(self, fn, args, kwargs, options)

        @functools.wraps(fn)
        def after_batch(*args: Any, **kwargs: Any) -> Any:
            with tf.control_dependencies(_tensors((args, kwargs))):
                return fn(*args, **kwargs)

        return original(self, after_batch, args, kwargs, options)

    tf.distribute.Strategy.run = run


def _tensors(structure: Any) -> list[tf.Tensor]:
    return list(filter(tf.is_tensor, tf.nest.flatten(structure, expand_composites=True)))
