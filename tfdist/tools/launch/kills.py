"""Kills tasks, and finds those that the kernel cannot end.

    kills = Kills()
    kills.kill(running)
    left = kills.look(running)      # every few seconds

The kernel cannot end a thread that waits for a disk, or for a network file system whose server is
gone (`man 7 signal`, uninterruptible sleep). The process of such a thread never ends.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence

from tfdist.tools.launch.process import Process

#: Within which the kernel ends a process, in seconds.
KILL_SECONDS = 10.0


class Kills:
    """The tasks that were killed."""

    def __init__(self) -> None:
        self._times: dict[Process, float] = {}
        # As found by the last look.
        self._stuck: Sequence[Process] = ()

    def kill(self, processes: Iterable[Process]) -> None:
        """Kills processes."""
        for process in processes:
            process.signal(signal.SIGKILL)
            self._times.setdefault(process, time.monotonic())

    def look(self, running: Sequence[Process]) -> list[Process]:
        """Those of the running processes that the kernel has not ended in time.

        A process counts as killed, too, if two looks have found it stuck.
        """
        stuck = [process for process in running if process.is_stuck]
        self.kill(process for process in stuck if process in self._stuck)
        self._stuck = stuck
        latest = time.monotonic() - KILL_SECONDS
        return [process for process in running if self._times.get(process, latest) < latest]
