"""The one Keras callback that sees the steps of a training, and notifies the other callbacks.

    followers = [Progress(state, output), Resume(state, output, …)]
    model.fit(…, callbacks=[Steps(state, followers), *followers])

Where a coordinator hands out the steps (parameter servers), Keras refuses callbacks that act on
batches. There the strategy itself tells of the steps that it is about to request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.state import TrainingState
from tfdist.upstream.keras_callback_logs import IgnoresStepLogs

Logs = dict[str, Any]


class StepFollower(IgnoresStepLogs):
    """A callback that `Steps` notifies of the steps; by default, it ignores them.

    Where Keras sees the steps, `Steps` calls it before and after each execution of one or several
    steps; elsewhere, only before each request for steps.

    Args:
      state: the state of this task's training.
      output: the output directory.
    """

    def __init__(self, state: TrainingState, output: OutputDirectory) -> None:
        super().__init__()
        self._state = state
        self._output = output

    def before_steps(self, batch: int) -> None:
        """Called before an execution, whose first step in the epoch is `batch`."""

    def after_steps(self, batch: int, logs: Logs | None) -> None:
        """Called after an execution, with what Keras passes to `on_train_batch_end`."""

    def before_request(self, steps: Callable[[], Sequence[int]], count: int) -> None:
        """Called before `count` steps are requested.

        Args:
          steps: returns the number of steps that each shard's reader has made in the epoch.
          count: the number of steps.
        """


class Steps(IgnoresStepLogs):
    """Tells other callbacks of the steps of a training.

    Args:
      state: knows the strategy.
      followers: the callbacks, in the order in which they are told.
    """

    def __init__(self, state: TrainingState, followers: Sequence[StepFollower]) -> None:
        super().__init__()
        self._known = self._followers = followers
        self._cursor = state.strategy.cursor
        if self._cursor.sees_steps:
            # Keras looks for these names.
            self.on_train_batch_begin = self._begin
            self.on_train_batch_end = self._end

    def on_train_begin(self, logs: Logs | None = None) -> None:
        # A script may have left some of them out.
        self._followers = [each for each in self._known if each.model is self.model]
        self._cursor.on_step_begin(self._request)

    def _begin(self, batch: int, logs: Logs | None = None) -> None:
        for follower in self._followers:
            follower.before_steps(batch)

    def _end(self, batch: int, logs: Logs | None = None) -> None:
        for follower in self._followers:
            follower.after_steps(batch, logs)

    def _request(self, steps: Callable[[], Sequence[int]], count: int) -> None:
        for follower in self._followers:
            follower.before_request(steps, count)
