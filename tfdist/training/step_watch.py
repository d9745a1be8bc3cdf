"""The Keras callback that watches the steps of a training, and records what the task does."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.coordination.liveness import activity
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.state import TrainingState
from tfdist.upstream.keras_callback_logs import ignores_step_logs

Logs = dict[str, Any]


class StepWatch(tf.keras.callbacks.Callback):
    """Ends this task with a hang report when the job makes no step.

    It is the first callback, so that the others run while it watches. `resume` ends the watch, with
    its export.

    Args:
      state: counts the steps.
      output: where the report is written.
    """

    def __init__(self, state: TrainingState, output: OutputDirectory) -> None:
        super().__init__()
        ignores_step_logs(self)
        self._state = state
        self._output = output
        self._activity = state.reporter.activity

    def on_train_begin(self, logs: Logs | None = None) -> None:
        cursor = self._state.strategy.cursor
        self._state.reporter.watch(
            lambda: cursor.progress,
            self._output.path,
            step_timeout=self._state.role.flags.step_timeout,
            is_chief=self._state.is_chief,
            waits_for_lost=self._state.role.spec.workers_may_rejoin,
        )

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        # The watchdog looks once a second, and new steps would mean that the training goes on.
        self._activity.made(self._state.strategy.cursor.progress)
        self._activity.enter(activity.BETWEEN_EPOCHS)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        self._activity.enter(activity.EVALUATING)

    def on_test_end(self, logs: Logs | None = None) -> None:
        self._activity.enter(activity.BETWEEN_EPOCHS)
