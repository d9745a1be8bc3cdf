"""Keeps a parameter server or a worker running until the tasks that it serves have exited.

serve_until_end(settings, preemption)                                    # serves the chief
serve_until_end(settings, preemption, cluster.training_tasks[1:])        # and the workers

TensorFlow's server is not told when training ends, so this polls the addresses of those tasks.
`run_function` does so for a type of task that serves something of its own.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tfdist.cluster import Task
from tfdist.config.role import TaskRole, TaskSettings
from tfdist.config.strategies import table
from tfdist.coordination import probe
from tfdist.coordination.liveness import heartbeat
from tfdist.coordination.preemption import Preemption
from tfdist.coordination.probe import RUNNING, Listener
from tfdist.errors import EXIT_FAILED, EXIT_OK, EXIT_PREEMPTED, log
from tfdist.process.memory import Memory

_POLL_SECONDS = 0.25
# How long tasks must be gone before they count as exited. The longer time is for a failure of the
# network, and for a launcher, which sends the completion notice a moment after the chief's exit.
_EXIT_SECONDS, _LOST_SECONDS = 0.25, 3.0

# For the chief to take this task out of TensorFlow's cluster.
_LEAVE_SECONDS = 1.0


def run_function(role: TaskRole, chief_at: tuple[str, int]) -> NoReturn:
    """Runs the function of this task's type until the job ends, and exits.

    Args:
      role: the role of this task.
      chief_at: the host and the port where the chief reports what it does.

    Raises:
      SystemExit: as `serve_until_end`; with EXIT_OK at the end of the job.
    """
    assert role.task.kind.function is not None
    function = table.load(role.task.kind.function)
    preemption = Preemption()
    preemption.listen(has_nothing_to_save=True)

    def serve() -> None:
        try:
            function(role)
        except BaseException:
            # As in the main thread, where nothing waits for it.
            sys.excepthook(*sys.exc_info())
            os._exit(EXIT_FAILED)

    threading.Thread(target=serve, name=role.task.type, daemon=True).start()
    serve_until_end(role.settings, preemption, watches_chief=False, chief_at=chief_at)
    sys.exit(EXIT_OK)


def serve_until_end(
    settings: TaskSettings,
    preemption: Preemption,
    others: Sequence[Task] = (),
    *,
    watches_chief: bool = True,
    chief_at: tuple[str, int] | None = None,
    may_leave: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when the chief and the others have exited.

    Args:
      settings: what is known of this task.
      preemption: the signals that this task has received.
      others: tasks that are served besides the chief.
      watches_chief: whether this task waits for the chief in a step, and so ends if that is lost.
      chief_at: where the chief answers as long as it runs, if it may have no TensorFlow server.
      may_leave: called after a signal, until it returns True; then this task leaves the job.
      sleep: waits for a number of seconds.

    Raises:
      SystemExit: this task was preempted (EXIT_PREEMPTED); or the chief never started, or it was
        lost and is restarted together with this task (EXIT_FAILED).
    """
    chief = settings.cluster.chief_task
    exited = f"{chief} and all workers have exited" if others else f"{chief} has exited"
    log(f"{settings.task} serves until {exited}")
    watched = {str(chief): settings.cluster.address(chief)} if watches_chief else {}
    served = _Served(settings, others, chief_at)
    timeout = settings.heartbeat_timeout
    with preemption.serving(), heartbeat.watched(watched, timeout):
        memory = Memory(str(settings.task))
        while not served.have_exited():
            memory.look()
            if preemption.is_requested and may_leave():
                log(f"{settings.task} leaves; the other workers read the rest of its data")
                sleep(_LEAVE_SECONDS)
                return
            sleep(_POLL_SECONDS)
    if preemption.is_requested and not served.has_completed:
        sys.exit(EXIT_PREEMPTED)
    if not served.has_started:
        log(f"error: {chief} has not started within {settings.startup_timeout:g} s")
        sys.exit(EXIT_FAILED)
    if settings.is_restartable and not served.has_completed:
        log(f"error: {chief} was lost")
        sys.exit(EXIT_FAILED)
    log(f"{settings.task} exits because {exited}")


@dataclass(eq=False)
class _Served:
    """Probes the tasks that a server serves.

    Attributes:
      role: the role of this task.
      others: the tasks besides the chief.
      chief_at: as in `serve_until_end`.
      has_started: whether the chief's TensorFlow server has answered.
      has_completed: whether the chief's launcher has sent the completion notice.
    """

    settings: TaskSettings
    others: Sequence[Task]
    chief_at: tuple[str, int] | None
    has_started: bool = False
    has_completed: bool = False
    _gone_since: float | None = None
    # By task, since when it accepts connections and answers none: it is stopped.
    _silent_since: dict[Task, float] = field(default_factory=dict)
    _lost: set[Task] = field(default_factory=set)

    def have_exited(self) -> bool:
        """Probes the tasks once; returns whether they have been gone for long enough."""
        chief = Listener.SERVER
        if self.chief_at is None or not probe.accepts(self.chief_at):
            cluster = self.settings.cluster
            chief = probe.identify(cluster.address(cluster.chief_task), self.settings.token)
        if self.has_started and chief is Listener.BARRIER:
            # A new process of the chief, which waits there until this task is restarted, too.
            chief = Listener.REFUSED
        self.has_completed = self.has_completed or chief is Listener.COMPLETED
        self.has_started = self.has_started or chief is Listener.SERVER or self.has_completed
        found = [chief]
        if self.has_started and chief not in RUNNING:
            found += map(self._identify, self.others)
        if any(listener in RUNNING for listener in found):
            self._gone_since = None
            return False
        now = time.monotonic()
        if self._gone_since is None:
            self._gone_since = now
        return now - self._gone_since >= self._limit(found)

    def _identify(self, task: Task) -> Listener:
        """What listens at a task's address; REFUSED if it has not answered for too long."""
        listener = probe.identify(self.settings.cluster.address(task))
        if listener is not Listener.SILENT:
            self._silent_since.pop(task, None)
            return listener
        now = time.monotonic()
        silent = now - self._silent_since.setdefault(task, now)
        if silent < self.settings.heartbeat_timeout:
            return listener
        if task not in self._lost:
            self._lost.add(task)
            log(
                f"{task} was lost: it has not answered for {silent:.0f} s (--heartbeat_timeout), "
                f"and {self.settings.cluster.chief_task} has exited"
            )
        return Listener.REFUSED

    def _limit(self, found: Sequence[Listener]) -> float:
        """How long the tasks must be gone before they count as exited, in seconds."""
        if self.has_completed:
            return 0.0
        if not self.has_started:
            return self.settings.startup_timeout
        is_certain = set(found) == {Listener.REFUSED} and not self.settings.is_restartable
        return _EXIT_SECONDS if is_certain else _LOST_SECONDS
