"""Steps apart, and now and then one all-reduce of what they have changed: for slow networks.

    local = LocalSGD(collectives, OuterSteps(period=50))
    local.state(model)           # what is to be restored with it
    local.begin()                # when its weights are equal everywhere
    local.synchronize()          # after each 50 steps: equal again

Local SGD (Stich 2019, arXiv:1805.09767) averages the tasks' weights. With a momentum the average of
their changes is what an outer optimizer takes for a gradient, as in DiLoCo (Douillard et al. 2023,
arXiv:2311.08105), with Nesterov's momentum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.train_functions import is_skipping
from tfdist.flags import JobFlags
from tfdist.strategies.collectives import Collectives

#: DiLoCo's, where a momentum is asked for; without one the weights are averaged.
OUTER_LEARNING_RATE = 0.7


@dataclass(frozen=True)
class OuterSteps:
    """When and how the tasks' weights are made equal.

    Attributes:
      period: the steps that a task makes by itself in between.
      learning_rate: what the average of the changes is multiplied by.
      momentum: of Nesterov's kind, over these averages.
    """

    period: int
    learning_rate: float = 1.0
    momentum: float = 0.0


def outer_steps(options: JobFlags) -> OuterSteps | None:
    """What the flags say; None where the tasks meet in every step."""
    if options.sync_period is None:
        return None
    momentum = options.outer_momentum or 0.0
    learning_rate = options.outer_learning_rate
    if learning_rate is None:
        learning_rate = OUTER_LEARNING_RATE if momentum else 1.0
    return OuterSteps(options.sync_period, learning_rate, momentum)


class LocalSGD:
    """The weights that all tasks had when they met last, and the outer optimizer.

    Args:
      collectives: those of the tasks that train.
      options: how they meet.
    """

    def __init__(self, collectives: Collectives, options: OuterSteps) -> None:
        self.options = options
        self._collectives = collectives
        self._variables: list[tf.Variable] = []
        self._anchors: list[tf.Variable] = []
        self._velocities: list[tf.Variable] = []
        self._has_changed = False

    def state(self, model: tf.keras.Model) -> dict[str, Any]:
        """What is to be saved with `model`, so that a job can go on."""
        trained = model.trainable_variables if model.built else []
        self._variables = keras_compat.as_tensorflow(trained)
        if self.options.momentum:
            self._velocities = [
                tf.Variable(tf.zeros_like(variable), trainable=False)
                for variable in self._variables
            ]
        return {"outer_momentum": tf.train.Checkpoint(velocities=self._velocities)}

    def begin(self) -> None:
        """To be called when the model of `state` is restored and equal over the tasks."""
        self._collectives.broadcast(self._velocities)
        self._anchors = [tf.Variable(variable, trainable=False) for variable in self._variables]
        self._has_changed = False

    def step(self) -> None:
        """Says that this task has made a step by itself."""
        self._has_changed = True

    def synchronize(self) -> None:
        """Makes the weights equal where there were steps since they were; collective."""
        if not self._has_changed:
            return
        self._has_changed = False
        pairs = zip(self._anchors, self._variables, strict=True)
        sums = self._collectives.sum([anchor - variable for anchor, variable in pairs])
        changes = [total / self._collectives.size for total in sums]
        if self._velocities:
            changes = [
                self._with_momentum(velocity, change)
                for velocity, change in zip(self._velocities, changes, strict=True)
            ]
        for anchor, variable, change in zip(self._anchors, self._variables, changes, strict=True):
            anchor.assign_sub(self.options.learning_rate * change)
            variable.assign(anchor)

    def _with_momentum(self, velocity: tf.Variable, change: tf.Tensor) -> tf.Tensor:
        velocity.assign(self.options.momentum * velocity + change)
        return self.options.momentum * velocity + change


class Synchronization(tf.keras.callbacks.Callback):
    """Makes the weights equal after each period, and before each evaluation and end of an epoch.

    Periods are counted from the beginning of an epoch.
    """

    def __init__(self, local: LocalSGD) -> None:
        super().__init__()
        # The logs of a step are not looked at, so that nothing waits for them.
        self._supports_tf_logs = True
        self._local = local
        self._periods = 0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._periods = batch // self._local.options.period

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if is_skipping(self.model):
            return
        self._local.step()
        # More than one step after its beginning where Keras executes several at a time.
        done = keras_compat.last_step(self.model, batch, self.params["steps"]) + 1
        if done // self._local.options.period > self._periods:
            self._local.synchronize()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._local.synchronize()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._local.synchronize()
