"""Runs actions at set times, for a loop that waits with a selector.

timers = Timers()
timers.set("grace", 30.0, kill)
timers.every("panel", 0.5, draw)
selector.select(timers.seconds_to_next())
timers.run_due()
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

# Delays between restarts, in seconds: the longest one, and the time after which the next restart
# counts as the first.
_LONGEST, _SETTLED = 60.0, 30.0


class RestartDelays:
    """The delay before each restart: none, then `second` seconds, and twice as long each time.

    Args:
      second: seconds before the second of several restarts soon after one another.
    """

    def __init__(self, second: float) -> None:
        self._second = second
        self._restarts, self._last = 0, -math.inf

    def next(self) -> float:
        """The seconds before a restart that is due now."""
        now = time.monotonic()
        if now > self._last + _SETTLED:
            self._restarts = 0
        doubled = 2.0 ** min(self._restarts - 1, 60)
        delay = min(self._second * doubled, _LONGEST) if self._restarts else 0.0
        self._restarts, self._last = self._restarts + 1, now + delay
        return delay


class Timers(dict[str, tuple[float, Callable[[], object]]]):
    """Actions by name, each with the time when it is due; a name has one action at a time."""

    def set(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        """Runs the action once, in `seconds` from now; never if that is `math.inf`."""
        self[name] = (time.monotonic() + seconds, action)

    def every(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        """Runs the action in `seconds` from now, and again and again until it returns False."""

        def run() -> None:
            self.set(name, seconds, run)
            if action() is False:
                self.pop(name, None)

        self.set(name, seconds, run)

    def run_due(self) -> None:
        """Runs the actions whose time has come."""
        now = time.monotonic()
        for name, (due, action) in list(self.items()):
            # An action may have removed another one.
            if now >= due and name in self:
                del self[name]
                action()

    def seconds_to_next(self) -> float:
        """The seconds until the next action is due, at least 0; `math.inf` if none will be."""
        first = min((due for due, _ in self.values()), default=math.inf)
        return max(0.0, first - time.monotonic())
