"""The processes of one job, from the first start to the last end.

with signals() as wakeup:
    code = Supervisor(FixedMembership(tasks), environ, wakeup, options, service).run()

A task that fails is started again, by itself or with all others as the task says, or ends the job.
Where the tasks may become more and fewer, all start again when they do.
"""

from __future__ import annotations

import math
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from tfdist.coordination.preemption import EXIT_PREEMPTED
from tfdist.errors import EXIT_FAILED, EXIT_USAGE, log
from tfdist.launch.forkserver import ForkServer
from tfdist.launch.output import prefix
from tfdist.launch.process import Process, how_it_ended
from tfdist.launch.signals import INTERRUPTIONS
from tfdist.launch.spec import Membership, TaskSpec
from tfdist.launch.starting import spawn
from tfdist.runtime import environment

_LONGEST_RESTART_DELAY = 60.0
# What the others of a task that has failed are given; they have nobody to save with.
_FAILURE_SECONDS = 5.0
# Between two looks at whether there are other members.
_NEWS_SECONDS = 1.0

Service = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """How a job is watched over.

    Attributes:
      grace_period: seconds that the tasks have to save and leave when a signal to the launcher
        tells them to, before they are killed; when a task has failed, at most 5 of these.
      max_restarts: how many times, over the whole job, tasks that failed are started again.
      restart_delay: seconds before the first restart; twice as many before each next one.
      patience: seconds after the end of the task that leads until those are named that still run,
        and until those of them are ended that were started again by themselves; an evaluator may
        take its time.
      preload: modules that a fork server imports once for all tasks, if there is more than one
        start; none: each task is a new process.
    """

    grace_period: float = 30.0
    max_restarts: int = 0
    restart_delay: float = 1.0
    patience: float = 30.0
    preload: tuple[str, ...] = ()


class Supervisor:
    """Runs the tasks of one job; the first of them is the one that leads.

    Args:
      members: what to start.
      environ: what the tasks inherit, beside what they add.
      wakeup: what `signals` gave.
      options: when to end, kill, name and restart.
      service: what the tasks need while they run, begun anew whenever all of them are started.
    """

    def __init__(
        self,
        members: Membership,
        environ: Mapping[str, str],
        wakeup: socket.socket,
        options: Supervision,
        service: Service = nullcontext,
    ) -> None:
        self._members = members
        self._tasks: Sequence[TaskSpec] = ()
        self._environ = environ
        self._wakeup = wakeup
        self._options = options
        self._make_service = service
        self._running: list[Process] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup, selectors.EVENT_READ)
        self._restarts = 0
        # Tasks that have been started again by themselves, while the others ran on.
        self._replaced: set[str] = set()
        self._leader_has_ended = False
        # Since it was told to, and all were to start again.
        self._leader_has_saved = False
        self._restarts_all = False
        self._is_interrupted = False
        self._cause: Process | None = None
        # The exit code, from the moment when something other than success has decided it.
        self._outcome: int | None = None
        # What is due at which time: a start keeps the job alive, a deadline does not.
        self._starts: dict[str, tuple[float, Callable[[], None]]] = {}
        self._deadlines: dict[str, tuple[float, Callable[[], None]]] = {}

    def run(self) -> int:
        """Runs the job to its end and returns its exit code; see `tfdist.launch.local.run`."""
        with tempfile.TemporaryDirectory(prefix="tfdist-run-") as directory, ExitStack() as stack:
            self._directory = Path(directory)
            self._service = stack.enter_context(ExitStack())
            self._server = self._make_server()
            if self._server:
                self._selector.register(self._server, selectors.EVENT_READ, self._server)
            try:
                self._start_all()
                while self._running or self._starts:
                    self._wait()
                if self._cause is not None:
                    self._say_cause(self._cause)
            finally:
                self._kill()
                self._selector.close()
        return self._outcome or 0

    def _make_server(self) -> ForkServer | None:
        tasks = () if self._members.can_change else self._members.tasks()
        # A new process is faster for a task that starts once.
        if not self._options.preload or (len(tasks) == 1 and not self._options.max_restarts):
            return None
        environ: dict[str, str] = {}
        for task in tasks:
            # NumPy's library reads it at its import, and so for all tasks.
            if threads := task.environment.get(environment.OPENMP_VARIABLE):
                environ.setdefault(environment.OPENMP_VARIABLE, threads)
        # Its socket may have no place, as in a temporary directory with a long path.
        with suppress(OSError):
            return ForkServer(self._options.preload, {**environ, **self._environ})
        return None

    def _start_all(self) -> None:
        if self._server and not self._server.is_ready:
            self._starts["all"] = _in(math.inf, self._start_all)
            return
        self._restarts_all = False
        self._leader_has_ended = self._leader_has_saved = False
        self._replaced.clear()
        self._deadlines.clear()
        try:
            self._tasks = self._members.tasks()
        except TimeoutError as error:
            log(f"error: {error}")
            self._outcome = EXIT_FAILED
            return
        if not self._tasks:
            self._starts["all"] = _in(_NEWS_SECONDS, self._start_all)
            return
        if self._members.can_change:
            self._deadlines["news"] = _in(_NEWS_SECONDS, self._on_news)
        self._service.close()
        self._service.enter_context(self._make_service())
        for task in self._tasks:
            self._start(task)

    def _start(self, task: TaskSpec) -> None:
        coloured = sys.stdout.isatty() and not self._environ.get("NO_COLOR")
        process = Process(
            task,
            prefix(task.name, self._tasks.index(task) if coloured else None),
            self._environ,
            self._directory / task.name.replace(":", "-"),
            self._server.start if self._server else spawn,
        )
        self._running.append(process)
        for source in process.sources:
            self._selector.register(source, selectors.EVENT_READ, process)

    def _wait(self) -> None:
        for key, _ in self._selector.select(self._seconds_to_next()):
            if key.data is None:
                for number in self._wakeup.recv(1 << 12):
                    self._on_signal(number)
            elif isinstance(key.data, ForkServer):
                self._selector.unregister(key.data)
                key.data.read_ready()
                if self._starts.pop("all", None):
                    self._start_all()
            elif key.fileobj is key.data.pipe and key.data.copy_output() == 0:
                self._selector.unregister(key.data.pipe)
        for process in [process for process in self._running if process.has_ended()]:
            self._on_end(process)
        self._on_time()

    def _on_signal(self, number: int) -> None:
        if number not in INTERRUPTIONS:
            return
        if self._outcome is None:
            self._outcome = EXIT_PREEMPTED if self._leader_has_saved else 128 + number
            self._is_interrupted = True
            self._starts.clear()
            # Those that are told already would take it for their second, and stop saving.
            if not (self._restarts_all and "grace" in self._deadlines):
                self._end_all(number, self._options.grace_period)
        elif number == signal.SIGINT:
            # A second Ctrl-C means that the user does not want to wait.
            self._on_grace_period()

    def _on_news(self) -> None:
        self._deadlines["news"] = _in(_NEWS_SECONDS, self._on_news)
        if self._outcome is not None or self._restarts_all or self._leader_has_ended:
            return
        if news := self._members.change():
            log(f"{news}: all tasks save and start again")
            self._end_all(signal.SIGTERM, self._options.grace_period)
            self._restart_all(delay=0.0)

    def _on_end(self, process: Process) -> None:
        for source in process.sources:
            if source in self._selector.get_map():
                self._selector.unregister(source)
        self._running.remove(process)
        code = process.close()
        if self._outcome is not None:
            if code == EXIT_PREEMPTED and self._is_interrupted and process.task is self._tasks[0]:
                # It has saved: whoever sent the signal may start the job again.
                self._outcome = code
        elif self._restarts_all:
            if process.task is self._tasks[0]:
                self._leader_has_saved = code == EXIT_PREEMPTED
                # Told to leave, it had nothing left to do.
                self._leader_has_ended = code == 0 and self._members.can_change
            self._restart_all_when_ended()
        elif code:
            self._on_failure(process, code)
        elif process.task is self._tasks[0]:
            self._leader_has_ended = True
            self._deadlines["patience"] = _in(self._options.patience, self._on_patience)

    def _on_failure(self, process: Process, code: int) -> None:
        cause = self._first_to_fail(process, code)
        how = f"{process.name} {how_it_ended(code)}"
        if cause is not process:
            how = f"{cause.name} failed, and {process.name} with it"
        if cause.uncaught:
            how += f" ({cause.uncaught.error})"
        is_late = self._leader_has_ended and not _evaluates(process.task)
        if code == EXIT_PREEMPTED and self._members.can_change:
            # Another machine has seen first that the hosts have changed.
            log(f"{how}: looking for the hosts anew{self._names(', ending ')}")
            self._end_others(process, code)
            self._restart_all(self._options.restart_delay)
        elif is_late and code == EXIT_PREEMPTED:
            pass  # A server that was told to end before the training was complete, and stayed.
        elif is_late and process.name in self._replaced:
            log(f"{how}, after the training was complete")
        elif is_late or code == EXIT_USAGE or self._restarts == self._options.max_restarts:
            self._fail(process, cause, code, how)
        else:
            delay = self._next_delay()
            how += f", restart {self._restarts} of {self._options.max_restarts}"
            if self._restarts_alone(process, cause):
                log(f"{how} in {delay:g} s")
                self._starts[process.name] = _in(delay, lambda: self._replace(process.task))
            else:
                log(f"{how} of all tasks in {delay:g} s{self._names(', ending ')}")
                self._end_others(process, code)
                self._restart_all(delay)

    def _restarts_alone(self, process: Process, cause: Process) -> bool:
        # Whoever has lost the leader says so first; the leader, and all others, are stuck.
        leader = f"{self._tasks[0].name} was lost"
        has_lost_leader = cause.uncaught is not None and leader in cause.uncaught.error
        return process.task.restarts_alone and cause.task.restarts_alone and not has_lost_leader

    def _fail(self, process: Process, cause: Process, code: int, how: str) -> None:
        given_up = f" (given up after {self._restarts} restarts)" if self._restarts else ""
        log(f"{how}{given_up}{self._names(', ending ')}")
        self._cause = cause
        self._outcome = code if code > 0 else 128 - code
        self._starts.clear()
        self._end_others(process, code)

    def _replace(self, task: TaskSpec) -> None:
        self._replaced.add(task.name)
        if not self._leader_has_ended or _evaluates(task):
            self._start(task)

    def _next_delay(self) -> float:
        doubled = 2.0 ** min(self._restarts, 60)
        self._restarts += 1
        return min(self._options.restart_delay * doubled, _LONGEST_RESTART_DELAY)

    def _restart_all(self, delay: float) -> None:
        self._restarts_all = True
        self._delay = delay
        # Those that wait for a restart of their own are started with all.
        self._starts.clear()
        self._restart_all_when_ended()

    def _restart_all_when_ended(self) -> None:
        if not self._running and not self._leader_has_ended:
            self._starts["all"] = _in(self._delay, self._start_all)

    def _first_to_fail(self, ended: Process, code: int) -> Process:
        """Whose exception came first, where `ended` is the first that was seen to end."""
        times = {
            process: uncaught.time
            for process in (ended, *self._running)
            if (uncaught := process.uncaught)
        }
        # A task killed by SIGKILL is itself the root cause.
        if code == -signal.SIGKILL or not times:
            return ended
        return min(times, key=lambda process: times[process])

    def _end_others(self, ended: Process, code: int) -> None:
        """Ends those that still run when a task has ended with `code`."""
        has_ps = any(task.name.startswith("ps:") for task in self._tasks)
        if code != EXIT_PREEMPTED:
            self._end_all(signal.SIGTERM, min(_FAILURE_SECONDS, self._options.grace_period))
        elif ended.task.restarts_alone or has_ps:
            # It has left by itself, and they do not know.
            self._end_all(signal.SIGTERM, self._options.grace_period)
        else:
            # They save, too; a signal might be their second, with which they would stop saving.
            self._end_all(None, self._options.grace_period)

    def _end_all(self, number: int | None, grace_period: float) -> None:
        for process in self._running:
            if number is not None:
                process.signal(number)
        if self._running:
            self._deadlines["grace"] = _in(grace_period, self._on_grace_period)

    def _on_grace_period(self) -> None:
        self._deadlines.pop("grace", None)
        if self._running:
            log(f"killing{self._names(' ')}: told to end, and still running")
        self._kill()

    def _kill(self) -> None:
        for process in self._running:
            process.signal(signal.SIGKILL)

    def _on_patience(self) -> None:
        lingering = [process for process in self._running if not _evaluates(process.task)]
        if lingering:
            names = ", ".join(process.name for process in lingering)
            log(
                f"{self._tasks[0].name} ended {self._options.patience:g} s ago, still running: "
                f"{names}"
            )
        for process in lingering:
            # It may have come too late to meet anyone.
            if process.name in self._replaced:
                process.signal(signal.SIGKILL)

    def _on_time(self) -> None:
        now = time.monotonic()
        for timers in (self._deadlines, self._starts):
            for name, (due, action) in list(timers.items()):
                # An action may have put another one off.
                if now >= due and name in timers:
                    del timers[name]
                    action()

    def _seconds_to_next(self) -> float | None:
        times = [due for due, _ in (*self._deadlines.values(), *self._starts.values())]
        first = min(times, default=math.inf)
        return None if first == math.inf else max(0.0, first - time.monotonic())

    def _names(self, before: str) -> str:
        return (
            before + ", ".join(process.name for process in self._running) if self._running else ""
        )

    def _say_cause(self, cause: Process) -> None:
        has_said_why = cause.uncaught or self._outcome == EXIT_PREEMPTED
        if not has_said_why and cause.last_lines:
            log(f"the last lines of {cause.name}:")
            for line in cause.last_lines:
                print(f"[{cause.name}] {line}".rstrip(), file=sys.stderr, flush=True)


def _evaluates(task: TaskSpec) -> bool:
    return task.name.startswith("evaluator:")


def _in(seconds: float, action: Callable[[], None]) -> tuple[float, Callable[[], None]]:
    return time.monotonic() + seconds, action
