"""Runs a job as processes on this machine.

    job = JobSpec(python=sys.executable, script="train.py", workers=2)
    sys.exit(launch(job, environ=os.environ))

The first task that fails ends the others, and so does a signal to the launcher: they are asked,
and killed where they do not follow, because a TensorFlow worker swallows SIGTERM. No task outlives
the launcher, however that ends. Needs Linux (`prctl`), and Python's main thread.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from tfdist import horovod_rendezvous
from tfdist.errors import UsageError
from tfdist.launch.output import LineReader, prefix
from tfdist.launch.spec import HOST, JobSpec, TaskSpec, plan, rendezvous_slots

_LAST_LINES = 20
_INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
# Looked up here and not in the forked child, where little is safe.
_prctl = ctypes.CDLL(None).prctl


def launch(job: JobSpec, *, environ: Mapping[str, str], grace_period: float = 5.0) -> int:
    """Runs `job` to its end and returns the launcher's exit code, as `run` does.

    Raises:
      UsageError: the strategy is Horovod, and Horovod is not installed.
    """
    with hold_ports(job.num_ports) as ports, ExitStack() as services:
        if job.strategy == "horovod":
            rendezvous = horovod_rendezvous.serve(rendezvous_slots(job), HOST, ports[-1])
            try:
                services.enter_context(rendezvous)
            except ModuleNotFoundError as error:
                raise UsageError(
                    "--strategy",
                    received=job.strategy,
                    accepted=f"a strategy whose engine is installed ({error})",
                    remedy="Build it with scripts/build_horovod.",
                ) from None
        tasks = plan(job, ports=ports, cores=available_cores(), environ=environ)
        return run(tasks, environ=environ, grace_period=grace_period)


def run(
    tasks: Sequence[TaskSpec],
    *,
    environ: Mapping[str, str],
    grace_period: float = 5.0,
    patience: float = 30.0,
) -> int:
    """Runs every task as a process, shows their output, and returns when all have ended.

    Args:
      tasks: what to start; the first is the one that leads.
      environ: what the tasks inherit, beside what they add.
      grace_period: seconds that a task which is told to end has before it is killed.
      patience: seconds after the end of the task that leads until those are named, once, that
        still run; an evaluator may take its time.

    Returns:
      0 when every task has ended with 0; else the exit code of the first that failed, 128 + n for
      signal n; 128 + n also where signal n to this process ended the job.
    """
    with _signals() as wakeup:
        local = _LocalJob(wakeup, grace_period, patience)
        try:
            for index, task in enumerate(tasks):
                local.start(index, task, environ)
            return local.wait()
        finally:
            local.kill()


@contextmanager
def hold_ports(count: int) -> Iterator[tuple[int, ...]]:
    """Free ports on 127.0.0.1 that nobody else is given while the block runs.

    Each is kept by a socket that is bound and does not listen: Linux lets a task bind and listen
    beside it where both have SO_REUSEADDR, as TensorFlow's gRPC and Horovod's rendezvous do.
    """
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            holder = held.enter_context(socket.socket())
            holder.bind((HOST, 0))
            # Only now: with it, the kernel may choose a port that another launcher holds.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            ports.append(int(holder.getsockname()[1]))
        yield tuple(ports)


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


class _Process:
    """A started task and what it has written."""

    def __init__(self, task: TaskSpec, line_prefix: str, environ: Mapping[str, str]) -> None:
        inherited = {name: value for name, value in environ.items() if name not in task.removed}
        self.name = task.name
        self._popen = subprocess.Popen(
            task.command,
            env={**inherited, **task.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own, so that what the task starts can be ended with it.
            start_new_session=True,
            preexec_fn=partial(_die_with, os.getpid()),
        )
        assert self._popen.stdout is not None
        self.pipe = self._popen.stdout
        os.set_blocking(self.pipe.fileno(), False)
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._prefix = line_prefix
        self._reader = LineReader()

    def copy_output(self) -> int | None:
        """Shows what is there; gives its size, 0 at the end, None where nothing is there yet."""
        try:
            data = os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return None
        self._show(self._reader.feed(data, time.monotonic()))
        return len(data)

    def has_ended(self) -> bool:
        """Whether the process has ended; it stays a zombie, so its group's number stays taken."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._popen.pid, flags) is not None

    def signal(self, number: int) -> None:
        """Sends a signal to the task and to what it has started. Not after `close`."""
        os.killpg(self._popen.pid, number)

    def close(self) -> int:
        """Kills what is left of the group, shows the rest of the output, gives the exit code."""
        self.signal(signal.SIGKILL)
        code = self._popen.wait()
        # To the end of what is there and not to the end of the file: a process that has left the
        # group may hold the pipe open.
        while self.copy_output():
            pass
        self._show(self._reader.finish())
        self.pipe.close()
        return code

    def _show(self, lines: Sequence[str]) -> None:
        self.last_lines.extend(lines)
        text = "".join(f"{(self._prefix + line).rstrip()}\n" for line in lines)
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()


class _LocalJob:
    """The processes of one job, from the first start to the last end."""

    def __init__(self, wakeup: socket.socket, grace_period: float, patience: float) -> None:
        self._wakeup = wakeup
        self._grace_period = grace_period
        self._patience = patience
        self._running: list[_Process] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup, selectors.EVENT_READ)
        self._leader: str | None = None
        self._failed: _Process | None = None
        # The exit code, from the moment when something other than success has decided it.
        self._outcome: int | None = None
        self._kill_at: float | None = None
        self._name_lingering_at: float | None = None

    def start(self, index: int, task: TaskSpec, environ: Mapping[str, str]) -> None:
        coloured = sys.stdout.isatty() and not environ.get("NO_COLOR")
        process = _Process(task, prefix(task.name, index if coloured else None), environ)
        self._running.append(process)
        self._selector.register(process.pipe, selectors.EVENT_READ, process)
        self._leader = self._leader or task.name

    def wait(self) -> int:
        while self._running:
            for key, _ in self._selector.select(self._seconds_to_next()):
                if key.data is None:
                    for number in self._wakeup.recv(1 << 12):
                        self._on_signal(number)
                elif key.data.copy_output() == 0:
                    self._selector.unregister(key.data.pipe)
            for process in [process for process in self._running if process.has_ended()]:
                self._on_end(process)
            self._on_time()
        if self._failed is not None and self._failed.last_lines:
            _say(f"the last lines of {self._failed.name}:")
            for line in self._failed.last_lines:
                print(f"[{self._failed.name}] {line}".rstrip(), file=sys.stderr, flush=True)
        return self._outcome or 0

    def kill(self) -> None:
        """Ends what still runs, where an exception has ended `wait`."""
        for process in self._running:
            process.signal(signal.SIGKILL)
        self._selector.close()

    def _on_signal(self, number: int) -> None:
        if number not in _INTERRUPTIONS:
            return
        if self._outcome is None:
            self._end(128 + number, number)
        elif number == signal.SIGINT:
            # Whoever presses Ctrl-C again does not want to wait.
            self._kill_at = time.monotonic()

    def _on_end(self, process: _Process) -> None:
        if process.pipe in self._selector.get_map():
            self._selector.unregister(process.pipe)
        self._running.remove(process)
        code = process.close()
        if code and self._outcome is None:
            self._failed = process
            _say(f"{process.name} {_how_it_ended(code)}{self._names(', ending ')}")
            self._end(code if code > 0 else 128 - code, signal.SIGTERM)
        elif process.name == self._leader:
            self._name_lingering_at = time.monotonic() + self._patience

    def _end(self, outcome: int, number: int) -> None:
        self._outcome = outcome
        self._kill_at = time.monotonic() + self._grace_period
        for process in self._running:
            process.signal(number)

    def _on_time(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            if self._running:
                _say(f"killing{self._names(' ')}: told to end, and still running")
            for process in self._running:
                process.signal(signal.SIGKILL)
        if self._name_lingering_at is not None and now >= self._name_lingering_at:
            self._name_lingering_at = None
            if any(not process.name.startswith("evaluator:") for process in self._running):
                _say(
                    f"{self._leader} ended {self._patience:g} s ago, still running:"
                    f"{self._names(' ')}"
                )

    def _seconds_to_next(self) -> float | None:
        times = [at for at in (self._kill_at, self._name_lingering_at) if at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _names(self, before: str) -> str:
        return (
            before + ", ".join(process.name for process in self._running) if self._running else ""
        )


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that gets the number of each signal that concerns a job, as one byte."""
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        # An ignored interruption stays ignored: that is how nohup keeps a job alive.
        heard = [n for n in _INTERRUPTIONS if signal.getsignal(n) != signal.SIG_IGN]
        before = {n: signal.signal(n, lambda *_: None) for n in (signal.SIGCHLD, *heard)}
        fd_before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield reader
        finally:
            signal.set_wakeup_fd(fd_before)
            for number, handler in before.items():
                signal.signal(number, handler)


def _die_with(launcher: int) -> None:
    """In a child before it becomes the task: the kernel kills it when the launcher is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:
        os.kill(os.getpid(), signal.SIGKILL)


def _how_it_ended(code: int) -> str:
    if code > 0:
        return f"failed with exit code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"


def _say(text: str) -> None:
    print(f"tfdist: {text}", file=sys.stderr, flush=True)
