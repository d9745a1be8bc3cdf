"""Lets each replica of a canned Estimator set the same counter of steps in a legacy optimizer.

apply()     # before the graph of a model function is built

A canned Estimator sets `optimizer.iterations` to the global step in its model function. With
several replicas in a process it does so once for each replica, and Keras accepts only the first.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def apply() -> None:
    """Changes Keras's class; a second call changes nothing."""
    kind = tf.keras.optimizers.legacy.Optimizer
    own = kind.iterations
    if own.fset.__module__ == __name__:
        return

    def set_iterations(self: Any, variable: Any) -> None:
        if variable is not self._iterations:
            own.fset(self, variable)

    kind.iterations = own.setter(set_iterations)
