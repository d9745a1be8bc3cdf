"""Measures what a task on this machine does, and how fast, while it runs.

watched = WatchedTask("worker:0")
watched.started(pid)
(row,) = watched.look(time.time())   # a few times per second
row.doing, row.examples_per_second
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import psutil

from tfdist.coordination.liveness import activity
from tfdist.coordination.liveness.activity import SERVING, WAITING, State
from tfdist.errors import EXIT_PREEMPTED

# The rate is that of the last seconds.
_RATE_SECONDS = 10.0
#: The activity of a task that reports none.
RUNNING = "running"


@dataclass(frozen=True)
class Row:
    """A task at one moment.

    Attributes:
      name: its name.
      doing: what it does, or how it ended.
      state: what it says of itself; None if it has said nothing.
      examples_per_second: of this task; None if it is not known.
      cpu: percent of a core; None if the process is gone.
      memory: bytes that are in memory; None if the process is gone.
      starts: how many times it was started.
    """

    name: str
    doing: str
    state: State | None
    examples_per_second: float | None
    cpu: float | None
    memory: int | None
    starts: int

    @property
    def steps(self) -> int | None:
        """The steps of the training so far, with those before a resume; None before the first."""
        state = self.state
        if state is None or state.doing == SERVING or not (state.resumed or state.last_step):
            return None
        return state.resumed + state.steps


def state_after(code: int) -> str:
    """The state of a task in its row after an exit with this code, or -n after signal n."""
    if code == EXIT_PREEMPTED:
        return "preempted"
    if code < 0:
        return f"killed by signal {-code}"
    return f"failed ({code})" if code else "done"


class WatchedTask:
    """A task that may be started several times.

    Args:
      name: its name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._starts = 0
        self._process: psutil.Process | None = None
        self._doing = WAITING
        self._state: State | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def started(self, pid: int) -> None:
        """Called when the task has a new process."""
        self._starts += 1
        self._doing, self._state = RUNNING, None
        self._seen.clear()
        try:
            self._process = psutil.Process(pid)
            self._process.cpu_percent()  # Begins to measure.
        except psutil.Error:
            self._process = None

    def ended(self, how: str) -> None:
        """Called when the process of the task has ended."""
        self._process, self._doing = None, how

    def look(self, now: float) -> list[Row]:
        """The task at this moment, as one row.

        Args:
          now: seconds since 1970.
        """
        cpu = memory = None
        if self._process is not None:
            try:
                cpu, memory = self._process.cpu_percent(), self._process.memory_info().rss
                record = activity.read(self._process.pid)
                self._state = self._state if record is None else record.state
            except (psutil.Error, OSError):
                self._process = None
        is_alive = self._process is not None
        doing = self._state.doing if self._state is not None and is_alive else self._doing
        rate = self._rate(now) if is_alive else None
        return [Row(self._name, doing, self._state, rate, cpu, memory, self._starts)]

    def _rate(self, now: float) -> float | None:
        state = self._state
        if state is None or not state.examples_per_step or not state.steps:
            return None
        if not self._seen or self._seen[-1][1] != state.steps:
            self._seen.append((state.last_step, state.steps))
        while len(self._seen) > 2 and self._seen[1][0] < now - _RATE_SECONDS:
            self._seen.popleft()
        (begun, before), (last, steps) = self._seen[0], self._seen[-1]
        if last <= begun:
            return None
        # A task that makes no steps becomes slower.
        seconds = max(last, now - 1.5) - begun
        return (steps - before) * state.examples_per_step / seconds
