"""Supervises the processes of one job: starts, restarts and ends them.

code = Supervisor(Membership(tasks), environ, options).run()

A task that fails is restarted, alone or together with all others, or ends the job. If the number of
tasks can change, all tasks are restarted when it does, or single ones come and leave.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

from tfdist.coordination.seal import token_of
from tfdist.errors import EXIT_FAILED, EXIT_PREEMPTED, EXIT_USAGE, log
from tfdist.tools.launch.forkserver import ForkServer, fork_server_of
from tfdist.tools.launch.membership import Membership
from tfdist.tools.launch.notices import Notices
from tfdist.tools.launch.output import prefix
from tfdist.tools.launch.process import KILL_SECONDS, Process, how_it_ended
from tfdist.tools.launch.run_directory import run_directory
from tfdist.tools.launch.servers import Servers
from tfdist.tools.launch.signals import INTERRUPTIONS, signals
from tfdist.tools.launch.spawn import spawn
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.task_plan import TaskSpec
from tfdist.tools.launch.timers import RestartDelays, Timers

# For the other tasks to exit after a failure; they cannot save without the failed task. The shorter
# time is for a restart: they may wait for the failed task in a collective.
_FAILURE_SECONDS, _RESTART_SECONDS = 5.0, 1.0
# Between two checks of the members, and of whether the tasks have met.
_CHECK_SECONDS = 1.0


class Supervisor:
    """Runs the tasks of one job; the first task is the chief.

    Args:
      members: what to start.
      environ: the environment that the tasks inherit.
      options: when to end, kill and restart tasks.
    """

    def __init__(
        self, members: Membership, environ: Mapping[str, str], options: Supervision
    ) -> None:
        self._members = members
        self._tasks: Sequence[TaskSpec] = ()
        self._environ = environ
        self._options = options
        self._running: list[Process] = []
        self._printer = options.make_printer()
        self._selector = selectors.DefaultSelector()
        self._restarts = 0
        self._delays = RestartDelays(options.restart_delay)
        # Tasks that were restarted alone while the others kept running.
        self._replaced: set[str] = set()
        # Whether the kernel cannot end a task.
        self._has_left = False
        # Servers that were killed because the training is complete, and tasks that were to leave.
        self._dismissed: set[Process] = set()
        self._chief_has_ended = False
        # After a signal, in a restart of all tasks.
        self._chief_has_saved = False
        self._restarts_all = False
        self._is_interrupted = False
        self._cause: Process | None = None
        # The exit code, as soon as something other than success has determined it.
        self._outcome: int | None = None
        # A pending start keeps the job running; a deadline does not.
        self._starts, self._deadlines = Timers(), Timers()

    def run(self) -> int:
        """Runs every task as a process, prints their output, and returns when all have ended.

        Returns:
          0 if every task has ended with 0; else the exit code of the first task that failed for the
          last time, 128 + n for signal n; 128 + n also if signal n to this process ended the job.
          If the kernel cannot end a task, this process exits with the code instead, because Python
          would wait for the task.
        """
        with run_directory() as self._directory, signals() as self._wakeup, ExitStack() as stack:
            self._selector.register(self._wakeup, selectors.EVENT_READ)
            self._service = stack.enter_context(ExitStack())
            self._server = fork_server_of(self._members.always, self._options, self._environ)
            if self._server:
                self._selector.register(self._server, selectors.EVENT_READ, self._server)
            try:
                self._start_all()
                while self._running or self._starts:
                    self._wait()
                if self._cause and self._outcome != EXIT_PREEMPTED:
                    self._cause.explain_failure()
            finally:
                _kill(self._running)
                self._printer.finish(self._outcome or 0)
                self._selector.close()
        if self._has_left:
            # Python would wait for its children.
            os._exit(self._outcome or EXIT_FAILED)
        return self._outcome or 0

    def _start_all(self) -> None:
        if self._server and not self._server.is_ready:
            self._starts.set("all", math.inf, self._start_all)
            return
        self._restarts_all = False
        self._chief_has_ended = self._chief_has_saved = False
        self._replaced.clear()
        self._deadlines.clear()
        self._printer.told.clear()
        try:
            self._tasks = self._members.tasks()
        except TimeoutError as error:
            log(f"error: {error}")
            self._outcome = EXIT_FAILED
            return
        if not self._tasks:
            self._starts.set("all", _CHECK_SECONDS, self._start_all)
            return
        self._deadlines.every("membership", _CHECK_SECONDS, self._check_membership)
        self._service.close()
        if rendezvous := self._members.rendezvous:
            self._service.enter_context(rendezvous.serve(token_of(self._environ)))
        for task in filter(self._members.is_there, self._tasks):
            self._start(task)
        self._notices = Notices(tuple(self._running))
        self._deadlines.every("notices", _CHECK_SECONDS, self._notices.look)
        self._deadlines.every("stuck", KILL_SECONDS / 2, self._look_for_stuck)
        self._printer.look()
        self._deadlines.every("panel", self._printer.seconds, self._printer.look)

    def _start(self, task: TaskSpec) -> None:
        colored = sys.stdout.isatty() and not self._environ.get("NO_COLOR")
        process = Process(
            task,
            prefix(task.name, self._tasks.index(task) if colored else None),
            self._environ,
            self._directory / task.name.replace(":", "-"),
            self._printer,
            self._server.start if self._server else spawn,
            self._options.log_dir,
        )
        self._running.append(process)
        self._printer.started(process.name, process.pid)
        for source in process.sources:
            self._selector.register(source, selectors.EVENT_READ, process)

    def _wait(self) -> None:
        seconds = min(self._starts.seconds_to_next(), self._deadlines.seconds_to_next())
        for key, _ in self._selector.select(None if seconds == math.inf else seconds):
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
        if self._printer.failure is not None and self._outcome is None:
            self._interrupt(signal.SIGTERM, self._printer.failure)
        for timers in (self._deadlines, self._starts):
            timers.run_due()

    def _on_signal(self, number: int) -> None:
        if number in INTERRUPTIONS and self._outcome is None:
            self._interrupt(number, 128 + number)
        elif number == signal.SIGINT:
            # A second Ctrl-C means that the user does not want to wait.
            self._on_grace_period("a second signal" if self._is_interrupted else "Ctrl-C")

    def _interrupt(self, number: int, code: int) -> None:
        """Lets all tasks save and exit; `code` is the outcome if the chief has not saved."""
        self._outcome = EXIT_PREEMPTED if self._chief_has_saved else code
        self._is_interrupted = True
        self._starts.clear()
        # To tasks that are saving already it would be the second signal, which stops them.
        if not (self._restarts_all and "grace" in self._deadlines):
            self._end_all(number, self._options.grace_period)

    def _check_membership(self) -> None:
        if self._outcome is not None or self._restarts_all or self._chief_has_ended:
            return
        if change := self._members.change():
            log(f"{change}: all tasks save and restart")
            self._end_all(signal.SIGTERM, self._options.grace_period)
            self._restart_all(delay=0.0)
        come, leave = self._members.moves()
        for task in come:
            self._join(task)
        for task in leave:
            self._leave(task)

    def _join(self, task: TaskSpec) -> None:
        if self._chief_has_ended:
            return
        if any(process.task is task for process in self._running):  # It has not left yet.
            self._starts.set(task.name, _CHECK_SECONDS, lambda: self._join(task))
        else:
            self._start(task)

    def _leave(self, task: TaskSpec) -> None:
        self._starts.pop(task.name, None)
        for process in self._running:
            if process.task is task and process not in self._dismissed:
                self._dismissed.add(process)
                process.signal(signal.SIGTERM)
                seconds = self._options.grace_period
                self._deadlines.set(f"{task.name} leaves", seconds, process.kill)

    def _forget(self, process: Process) -> None:
        for source in process.sources:
            if source in self._selector.get_map():
                self._selector.unregister(source)
        self._running.remove(process)

    def _on_end(self, process: Process) -> None:
        self._forget(process)
        code = process.close()
        if process in self._dismissed:
            code = 0
        self._printer.ended(process.name, code)
        if self._outcome is not None:
            if code == EXIT_PREEMPTED and self._is_interrupted and process.task is self._tasks[0]:
                # It has saved, so the job can be started again later.
                self._outcome = code
        elif self._restarts_all:
            if process.task is self._tasks[0]:
                self._chief_has_saved = code == EXIT_PREEMPTED
                # It received the signal when it had finished training.
                self._chief_has_ended = code == 0 and self._members.can_change
            self._restart_all_when_ended()
        elif code:
            self._on_failure(process, code)
        else:
            self._notices.on_success(process)
            if process.task is self._tasks[0]:
                self._chief_has_ended = True
                seconds = self._options.shutdown_timeout
                self._deadlines.set("shutdown", seconds, self._on_shutdown_timeout)
        self._watch_servers()

    def _on_failure(self, process: Process, code: int) -> None:
        cause = self._first_to_fail(process, code)
        how = f"{process.name} {how_it_ended(code)}"
        if cause is not process:
            how = f"{cause.name} failed, and {process.name} with it"
        error = f" ({cause.uncaught.error})" if cause.uncaught else ""
        self._printer.failed(how + error)
        # The task has printed this one as a sentence.
        how += "" if cause.has_said_why and error.startswith(" (OutputError") else error
        is_late = self._chief_has_ended and process.task.kind.in_cluster
        if code == EXIT_PREEMPTED and self._members.can_change:
            # Another machine has noticed first that the hosts have changed.
            log(f"{how}: reading the list of hosts again{self._and_end()}")
            self._end_others(process, code)
            self._restart_all(self._options.restart_delay)
        elif is_late and code == EXIT_PREEMPTED:
            pass  # A server that was preempted before the training was complete, and kept serving.
        elif is_late and (process.name in self._replaced or (process.task.serves and code < 0)):
            # A server has nothing to finish.
            log(f"{how}, after the training was complete")
        elif is_late or code == EXIT_USAGE or self._restarts == self._options.max_restarts:
            self._fail(process, cause, code, how)
        else:
            delay = self._delays.next()
            when = f"in {delay:g} s" if delay else "now"
            self._restarts += 1
            how += f", restart {self._restarts} of {self._options.max_restarts}"
            if self._restarts_alone(process, cause):
                log(f"{how} {when}")
                self._starts.set(process.name, delay, lambda: self._replace(process.task))
            else:
                log(f"{how} of all tasks {when}{self._and_end()}")
                self._end_others(process, code, _RESTART_SECONDS)
                self._restart_all(delay)

    def _restarts_alone(self, process: Process, cause: Process) -> bool:
        # A task that has lost the chief exits first; the chief and all other tasks hang.
        chief = self._tasks[0].name
        has_lost_chief = cause.uncaught is not None and cause.uncaught.lost_task == chief
        return process.task.restarts_alone and cause.task.restarts_alone and not has_lost_chief

    def _fail(self, process: Process, cause: Process, code: int, how: str) -> None:
        given_up = f" (given up after {self._restarts} restarts)" if self._restarts else ""
        log(f"{how}{given_up}{self._and_end()}")
        self._cause = cause
        self._outcome = code if code > 0 else 128 - code
        self._starts.clear()
        self._end_others(process, code)

    def _replace(self, task: TaskSpec) -> None:
        self._replaced.add(task.name)
        if not self._chief_has_ended or not task.kind.in_cluster:
            self._start(task)

    def _restart_all(self, delay: float) -> None:
        self._restarts_all = True
        self._delay = delay
        # Tasks that wait for a restart alone are started with all others.
        self._starts.clear()
        self._restart_all_when_ended()

    def _restart_all_when_ended(self) -> None:
        if not self._running and not self._chief_has_ended:
            self._starts.set("all", self._delay, self._start_all)

    def _first_to_fail(self, ended: Process, code: int) -> Process:
        """The process whose exception came first; `ended` is the first that was seen to end."""
        failures = {process: process.uncaught for process in (ended, *self._running)}
        times = {process: failure.time for process, failure in failures.items() if failure}
        # A task killed by SIGKILL is itself the root cause.
        if code == -signal.SIGKILL or not times:
            return ended
        return min(times, key=lambda process: times[process])

    def _end_others(
        self, ended: Process, code: int, failure_seconds: float = _FAILURE_SECONDS
    ) -> None:
        """Ends the running tasks after a task has ended with `code`."""
        is_failure = code != EXIT_PREEMPTED
        seconds = self._options.grace_period
        if is_failure:
            seconds = min(failure_seconds, seconds)
        # Others that notice its exit are saving too; a second signal would stop them.
        is_noticed = not (is_failure or ended.task.restarts_alone or self._has_servers())
        self._end_all(None if is_noticed else signal.SIGTERM, seconds)

    def _end_all(self, number: int | None, grace_period: float) -> None:
        for process in self._running:
            if number is not None:
                process.signal(number)
        if self._running:
            self._deadlines.set("grace", grace_period, self._on_grace_period)

    def _on_grace_period(self, why: str = "still running after the grace period") -> None:
        self._deadlines.pop("grace", None)
        if self._running:
            log(f"killing {_names(self._running)}: {why}")
        _kill(self._running)

    def _look_for_stuck(self) -> None:
        for process in [process for process in self._running if process.is_stuck]:
            why = "it waits for a disk or a network file system"
            log(f"the kernel cannot end {process.name} (process {process.pid}): {why}")
            self._forget(process)
            self._has_left = True
            self._outcome = self._outcome or EXIT_FAILED
            self._starts.clear()
            self._end_all(signal.SIGTERM, min(_FAILURE_SECONDS, self._options.grace_period))

    def _on_shutdown_timeout(self) -> None:
        lingering = [process for process in self._running if process.task.kind.in_cluster]
        if lingering:
            seconds = f"{self._options.shutdown_timeout:g} s"
            log(f"{self._tasks[0].name} ended {seconds} ago, still running: {_names(lingering)}")
        # It may have started too late to reach any other task.
        _kill(process for process in lingering if process.name in self._replaced)

    def _watch_servers(self) -> None:
        # Starts again after each end of a task: servers have the whole time to end by themselves.
        if self._chief_has_ended and self._outcome is None and self._has_servers():
            servers = Servers(self._tasks[0], self._running)
            seconds = self._options.server_timeout
            self._deadlines.set("servers", seconds, lambda: self._end_servers(servers))

    def _end_servers(self, servers: Servers) -> None:
        if self._outcome is not None or not servers.are_done():
            self._watch_servers()
            return
        if servers.workers:
            log(f"ending {_names(servers.workers)}: idle since {self._tasks[0].name} has ended")
        self._dismissed.update(servers.processes)
        _kill(servers.processes)  # A server has nothing to save.

    def _has_servers(self) -> bool:
        return any(task.kind.serves for task in self._tasks)

    def _and_end(self) -> str:
        return f", ending {_names(self._running)}" if self._running else ""


def _names(processes: Iterable[Process]) -> str:
    return ", ".join(process.name for process in processes)


def _kill(processes: Iterable[Process]) -> None:
    for process in processes:
        process.kill()
