"""Finds a remote call that does not return although the called task is alive.

    report_calls({"worker:0": call}, seconds=5.0, write=write)       # in the process that calls
    watch = CallWatch(["worker:0"], timeout=30.0)                    # in the process that watches
    watch.receive("worker:0")
    watch.advance(1.0, answering={"worker:0"})
    watch.silent()                                                   # None: no task is silent

TensorFlow's remote calls have no deadline. A server that accepts a connection and never reads from
it, while it answers all new ones, blocks them forever. So the calling process makes a small call of
each task again and again, each in a thread of its own, and reports every return. If the reports of
one task stop while the process itself runs and the task answers others, a call does not return.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping

#: The report that the process itself runs, and the beginning of one that a task is away.
ALIVE = "alive"
_AWAY = "-"

#: The timeouts after which a process that reports nothing is considered blocked. A call may hold
#: Python's global interpreter lock, which stops all reports. But so may a long computation in an
#: extension, which needs more time than a call.
BLOCKED_TIMEOUTS = 10


def report_calls(
    calls: Mapping[str, Callable[[], bool]], seconds: float, write: Callable[[str], None]
) -> None:
    """Calls each task in a thread of its own, and reports each return.

    Args:
      calls: by task, a small call. It returns False if this process is not connected to the task,
        which is away. An exception is a return: whether a task was lost is for the calls that need
        it.
      seconds: the seconds between two calls of a task.
      write: reports a line; an OSError, when the reader has exited, ends the thread.
    """

    def repeat(name: str, call: Callable[[], bool]) -> None:
        while True:
            is_connected = True
            with contextlib.suppress(Exception):
                is_connected = call()
            try:
                write(name if is_connected else _AWAY + name)
            except (OSError, ValueError):
                return
            time.sleep(seconds)

    for name, call in {ALIVE: lambda: True, **calls}.items():
        thread = threading.Thread(
            target=repeat, args=(name, call), name=f"calls-of-{name}", daemon=True
        )
        thread.start()


class CallWatch:
    """Decides from the reports whether a task does not return a call.

    Args:
      tasks: the names of the called tasks.
      timeout: seconds after which a call that has not returned is considered lost.

    Attributes:
      away: the tasks to which the calling process is not connected. They need not answer; but if
        one does, it must be connected within the timeout.
    """

    def __init__(self, tasks: Iterable[str], timeout: float) -> None:
        self._timeout = timeout
        self._silence = dict.fromkeys([ALIVE, *tasks], 0.0)
        # A task counts from its first report: connecting to it takes a while.
        self._known: set[str] = set()
        self.away: set[str] = set()

    def receive(self, name: str) -> None:
        """Records that a call has returned, or for ALIVE, that the calling process runs; or that a
        task is away."""
        task = name.removeprefix(_AWAY)
        if task != name:
            self.away.add(task)
        elif task in self._silence:
            self._silence[task] = 0.0
            self._known.add(task)
            self.away.discard(task)

    def advance(self, seconds: float, answering: Container[str]) -> None:
        """Records that time has passed in which the calling process could run.

        Args:
          seconds: the time.
          answering: the tasks that answer other connections.
        """
        self._silence[ALIVE] += seconds
        if self._silence[ALIVE] > self._timeout / 2:
            return  # Without its own report, the process cannot report its tasks either.
        for name in self._known - {ALIVE}:
            # If a task answers no connection at all, the heartbeat ends the job.
            self._silence[name] = self._silence[name] + seconds if name in answering else 0.0

    def silent(self) -> str | None:
        """The task whose call hangs; ALIVE if the calling process itself hangs; otherwise None."""
        if ALIVE in self._known and self._silence[ALIVE] >= BLOCKED_TIMEOUTS * self._timeout:
            return ALIVE
        tasks = {name: silence for name, silence in self._silence.items() if name != ALIVE}
        longest = max(tasks, key=lambda name: tasks[name], default=None)
        return longest if longest is not None and tasks[longest] >= self._timeout else None
