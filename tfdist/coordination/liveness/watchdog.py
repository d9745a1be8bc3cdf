"""Detects that a training task no longer makes steps.

    watchdog = Watchdog(activity, progress, step_timeout=None, on_silence=report)
    watchdog.start()
    ...                          # calls report(seconds) when no step was made for too long
    watchdog.stop()

The task has `step_timeout` seconds for a step: by default ten times the slowest step so far, and at
least 60 s. It has ten times as long before the first step, which is traced, and for what it does
between steps: saving, evaluating, and the end of an epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from tfdist.coordination.liveness import activity
from tfdist.coordination.liveness.activity import Activity

#: How much longer than a step everything else may take.
PATIENCE = 10.0
_SLOWEST_STEPS = 10.0
_LEAST_SECONDS = 60.0
_LONGEST_POLL_SECONDS = 1.0
_POLLS = 10


@dataclass(eq=False)
class Watchdog:
    """Watches the steps of this task in a thread.

    Args:
      record: where steps are recorded.
      progress: returns a number that changes with every step; called in another thread.
      step_timeout: seconds for a step; None for the default.
      on_silence: called with the seconds without a step, again and again until there is one.
      is_in_step: returns whether the task makes a step now; None if the activity tells.
      clock: returns seconds, from any starting point.
    """

    record: Activity
    progress: Callable[[], int]
    step_timeout: float | None
    on_silence: Callable[[float], None]
    _: KW_ONLY
    is_in_step: Callable[[], bool] | None = None
    clock: Callable[[], float] = time.monotonic
    _slowest: float = 0.0
    _silent: float = 0.0
    _looked: float = 0.0
    _steps: int | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Watches from now on."""
        self._looked = self.clock()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stops watching."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(self.poll_seconds):
            self.look()

    @property
    def poll_seconds(self) -> float:
        """Seconds between two checks."""
        return min(_LONGEST_POLL_SECONDS, self.limit / _POLLS)

    @property
    def limit(self) -> float:
        """The seconds that a step may take."""
        if self.step_timeout is not None:
            return self.step_timeout
        return max(_LEAST_SECONDS, _SLOWEST_STEPS * self._slowest)

    def look(self) -> None:
        """Checks once whether a step was made."""
        now = self.clock()
        # Counted, not measured: this process may have been suspended.
        passed, self._looked = min(now - self._looked, 2 * self.poll_seconds), now
        steps = self.progress()
        if steps != self._steps:
            doing = self.record.state.doing
            if self._steps is not None and doing in (activity.STARTING, activity.TRAINING):
                self._slowest = max(self._slowest, self._silent + passed)
            self._steps, self._silent = steps, 0.0
            self.record.made(steps)
            return
        self._silent += passed
        if self.is_in_step is not None and self._steps:
            doing = activity.TRAINING if self.is_in_step() else activity.BETWEEN_STEPS
            if doing != self.record.state.doing:
                self.record.enter(doing)
        patience = 1.0 if self.record.state.doing == activity.TRAINING else PATIENCE
        if self._silent >= patience * self.limit:
            self.on_silence(self._silent)
