"""Tells when the servers of a parameter-server job have nothing left to do.

    servers = Servers(chief, running)       # when the chief has succeeded
    ...                                     # some seconds later, if no task has ended meanwhile
    if servers.are_done():
        for process in servers.processes:
            process.signal(signal.SIGKILL)

A script that uses tfdist ends its own servers. In any other script a server waits in
`tf.distribute.Server.join`, which never returns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

from tfdist.process.resources import is_suspended
from tfdist.tools.launch.process import Process
from tfdist.tools.launch.task_plan import TaskSpec

# Seconds of CPU time per second. A server without requests uses none.
_IDLE = 0.01


class Servers:
    """The servers and workers of a job that run after its chief has succeeded.

    Args:
      chief: the chief of the job.
      running: the processes of the job that have not ended.

    Attributes:
      processes: those of the servers and workers.
      workers: those of the workers.
    """

    def __init__(self, chief: TaskSpec, running: Iterable[Process]) -> None:
        self.processes = [process for process in running if process.task.kind.in_cluster]
        self.workers = [process for process in self.processes if process.task.kind.trains]
        self._workers_may_serve = chief.kind.leads
        self._time = time.monotonic()
        self._before = cpu_seconds(self.workers)

    def are_done(self) -> bool:
        """Whether no worker has trained since this object was created.

        In a job with a task of type chief, a worker may serve, as with
        `tf.distribute.ParameterServerStrategy`, or train, as with Estimators. It serves if it has
        used no CPU time. In any other job every worker trains until it ends, unless it is stopped
        and no ps is left.
        """
        if not self.workers:
            return True
        if len(self.workers) == len(self.processes):
            # Workers train until they end, but the ps have given up those that are stopped.
            return all(is_suspended(process.pid) for process in self.workers)
        # This is negative if a child process has ended.
        used = cpu_seconds(self.workers) - self._before
        is_idle = 0 <= used < _IDLE * (time.monotonic() - self._time)
        return self._workers_may_serve and is_idle


def cpu_seconds(processes: Iterable[Process]) -> float:
    """The CPU time of tasks and their child processes."""
    # A task is the leader of its session.
    sessions = {process.pid for process in processes}
    seconds = 0.0
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):  # The process has ended meanwhile.
            if os.getsid(process.pid) in sessions:
                seconds += sum(process.cpu_times()[:2])
    return seconds
