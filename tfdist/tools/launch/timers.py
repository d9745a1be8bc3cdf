"""Actions that run at a time, for a loop that waits with a selector.

timers = Timers()
timers.set("grace", 30.0, kill)
selector.select(timers.seconds_to_next())
timers.run_due()
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

Action = Callable[[], None]


class Timers:
    """Actions by name; a name has one action at a time. True while there is an action."""

    def __init__(self) -> None:
        self._actions: dict[str, tuple[float, Action]] = {}

    def __bool__(self) -> bool:
        return bool(self._actions)

    def __contains__(self, name: str) -> bool:
        return name in self._actions

    def set(self, name: str, seconds: float, action: Action) -> None:
        """Runs the action once, in `seconds` from now; never if that is `math.inf`."""
        self._actions[name] = (time.monotonic() + seconds, action)

    def cancel(self, name: str) -> bool:
        """Cancels the action of that name; returns whether there was one."""
        return self._actions.pop(name, None) is not None

    def clear(self) -> None:
        """Cancels every action."""
        self._actions.clear()

    def run_due(self) -> None:
        """Runs the actions whose time has come."""
        now = time.monotonic()
        for name, (due, action) in list(self._actions.items()):
            # An action may have canceled another one.
            if now >= due and self.cancel(name):
                action()

    def seconds_to_next(self) -> float:
        """The seconds until the next action is due, at least 0; `math.inf` if none will be."""
        first = min((due for due, _ in self._actions.values()), default=math.inf)
        return max(0.0, first - time.monotonic())
