"""The Keras callback that follows the steps, and reports the progress to other processes."""

from __future__ import annotations

import time

import numpy as np

from tfdist.coordination.liveness.activity import BETWEEN_EPOCHS, EVALUATING, TRAINING
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.state import TrainingState
from tfdist.training.steps import Logs, StepFollower

# Reading the loss waits for the step.
_LOSS_SECONDS = 1.0


class Progress(StepFollower):
    """Records the epoch, the number of steps of the training, and the loss of each epoch.

    Also records the loss within an epoch, about once a second, where Keras sees the steps.

    Ends this task with a hang report when the job makes no step. It comes before the other
    callbacks, so that they run while it watches. `resume` ends the watch, with its export.

    Args:
      state: counts the steps, and knows the examples of a step.
      output: where the hang report is written.
    """

    def __init__(self, state: TrainingState, output: OutputDirectory) -> None:
        super().__init__(state, output)
        self._activity = state.reporter.activity
        self._read = 0.0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        cursor = self._state.strategy.cursor
        self._state.reporter.watch(
            lambda: cursor.progress,
            self._output.path,
            step_timeout=self._state.role.flags.step_timeout,
            is_chief=self._state.is_chief,
            waits_for_lost=self._state.role.spec.workers_may_rejoin,
        )

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        state = self._state
        epochs = int(self.params.get("epochs") or 0)
        # The first epoch tells it otherwise.
        goal = state.goal or (round(state.steps / epoch * epochs) if epoch else 0)
        self._activity.describe(
            epoch=epoch + 1,
            epochs=epochs,
            resumed=state.steps - state.strategy.cursor.steps_made,
            goal=goal,
            examples_per_step=(state.examples_per_update or 0) / len(state.strategy.topology.peers),
        )

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        # The watchdog looks once a second, and new steps would mean that the training goes on.
        self._activity.made(self._state.strategy.cursor.progress)
        self._activity.enter(BETWEEN_EPOCHS)
        self._record_loss(logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._activity.enter(EVALUATING)

    def on_test_end(self, logs: Logs | None = None) -> None:
        self._activity.enter(BETWEEN_EPOCHS)

    def _record_loss(self, logs: Logs | None) -> None:
        if logs and "loss" in logs:
            self._activity.describe(loss=float(np.asarray(logs["loss"])))

    def after_steps(self, batch: int, logs: Logs | None) -> None:
        if self._activity.state.doing != TRAINING:
            self._activity.enter(TRAINING)
        now = time.monotonic()
        if now - self._read >= _LOSS_SECONDS:
            self._read = now
            self._record_loss(logs)
