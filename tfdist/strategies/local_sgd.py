"""Local SGD for slow networks: tasks step independently and average their weights every N steps.

    local = LocalSGD(collectives, 50, options)
    local.state(model)           # creates the state that checkpoints contain
    local.begin()                # call when the weights are equal in all tasks
    local.synchronize()          # call every 50 steps: makes the weights equal again

Local SGD (Stich 2019, arXiv:1805.09767) averages the tasks' weights. With an outer momentum, an
outer optimizer uses the average weight change as its gradient, with Nesterov momentum, as in DiLoCo
(Douillard et al. 2023, arXiv:2311.08105).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.train_functions import is_skipping
from tfdist.config.strategies.rows import LocalSGDOptions
from tfdist.strategies.collectives import Collectives
from tfdist.upstream.keras_callback_logs import IgnoresStepLogs

#: The default with an outer momentum, as in DiLoCo. Without a momentum, the default is 1.
OUTER_LEARNING_RATE = 0.7


class LocalSGD:
    """Averages the tasks' weights, and keeps the outer optimizer's state.

    Args:
      collectives: the collectives of the training tasks.
      period: the number of steps between two averages.
      options: the outer optimizer.

    Attributes:
      period: the number of steps between two averages.
      learning_rate: the factor of the average weight change.
      momentum: Nesterov momentum over the average weight changes.
    """

    def __init__(self, collectives: Collectives, period: int, options: LocalSGDOptions) -> None:
        self.period = period
        self.momentum = options.outer_momentum or 0.0
        default = OUTER_LEARNING_RATE if self.momentum else 1.0
        given = options.outer_learning_rate
        self.learning_rate = default if given is None else given
        self._collectives = collectives
        self._variables: list[tf.Variable] = []
        # The weights after the last average.
        self._anchors: list[tf.Variable] = []
        self._velocities: list[tf.Variable] = []
        self._has_changed = False

    def state(self, model: tf.keras.Model) -> dict[str, Any]:
        """The state that a checkpoint contains in addition to `model`, by name."""
        trained = model.trainable_variables if model.built else []
        self._variables = keras_compat.as_tensorflow(trained)
        if self.momentum:
            self._velocities = [
                tf.Variable(tf.zeros_like(variable), trainable=False)
                for variable in self._variables
            ]
        return {"outer_momentum": tf.train.Checkpoint(velocities=self._velocities)}

    def begin(self) -> None:
        """Call this when the model of `state` is restored and equal in all tasks."""
        self._collectives.broadcast(self._velocities)
        self._anchors = [tf.Variable(variable, trainable=False) for variable in self._variables]
        self._has_changed = False

    def step(self) -> None:
        """Call this after each step of this task."""
        self._has_changed = True

    def synchronize(self) -> None:
        """Averages the weights of all tasks; every task must call it.

        Does nothing if no step was made since the last average.
        """
        if not self._has_changed:
            return
        self._has_changed = False
        pairs = zip(self._anchors, self._variables, strict=True)
        changes = self._collectives.mean([anchor - variable for anchor, variable in pairs])
        if self._velocities:
            changes = [
                self._with_momentum(velocity, change)
                for velocity, change in zip(self._velocities, changes, strict=True)
            ]
        for anchor, variable, change in zip(self._anchors, self._variables, changes, strict=True):
            anchor.assign_sub(self.learning_rate * change)
            variable.assign(anchor)

    def _with_momentum(self, velocity: tf.Variable, change: tf.Tensor) -> tf.Tensor:
        velocity.assign(self.momentum * velocity + change)
        return self.momentum * velocity + change


class Synchronization(IgnoresStepLogs):
    """Averages the weights after each period, before each evaluation, and at the end of an epoch.

    Periods start at the beginning of an epoch.
    """

    def __init__(self, local: LocalSGD) -> None:
        super().__init__()
        self._local = local
        self._periods = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._periods = batch // self._local.period

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if is_skipping(self.model):
            return
        self._local.step()
        # Keras may execute several steps per batch callback.
        done = keras_compat.last_step(self.model, batch, self.params["steps"]) + 1
        if done // self._local.period > self._periods:
            self._local.synchronize()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._local.synchronize()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._local.synchronize()
