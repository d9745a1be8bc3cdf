"""A task as a process on this machine: starts it, copies its output, ends it.

process = Process(task, prefix("worker:0"), os.environ, Path("/tmp/worker-0.json"), printer)
process.copy_output()           # whenever its pipe is readable
if process.has_ended():
    print(how_it_ended(process.close()))

The kernel kills the process when the launcher exits. Its children are ended with it.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO

import psutil

from tfdist.errors import ERROR_FILE_VARIABLE, EXIT_PREEMPTED, log
from tfdist.process.excepthook import Uncaught, read_uncaught
from tfdist.process.mistakes import remedy_for
from tfdist.process.resources import status
from tfdist.tools.launch.noise import Noise
from tfdist.tools.launch.output import LineReader, Printer
from tfdist.tools.launch.spawn import Start, spawn
from tfdist.tools.launch.task_log import TaskLog
from tfdist.tools.launch.task_plan import TaskSpec

#: Within which the kernel ends a process that was killed, in seconds.
KILL_SECONDS = 10.0

_LAST_LINES = 20
_LAST_SECONDS = 0.2


class Process:
    """A started task and its output.

    Args:
      task: the task to start.
      line_prefix: precedes each line of its output.
      environ: the environment that it inherits.
      error_file: where it writes its uncaught exception; see `tfdist.process.excepthook`.
      printer: prints its output.
      start: starts it as the leader of its own process group, so that its children can be ended
        with it.
      log_dir: where its whole output is added to a file; None if nowhere.

    Attributes:
      task, name: the task and its name.
      pid: the number of the process, which is also that of its session.
      pipe: what the task writes; see `copy_output`.
      last_lines: the last lines that were shown of its output.
      has_said_why: whether it has printed an error of tfdist, which says why it fails in one line.
      sources: what is readable when the task has written something or has ended.
    """

    def __init__(
        self,
        task: TaskSpec,
        line_prefix: str,
        environ: Mapping[str, str],
        error_file: Path,
        printer: Printer,
        start: Start = spawn,
        log_dir: Path | None = None,
    ) -> None:
        error_file.unlink(missing_ok=True)
        self._error_file = error_file
        reader, writer = os.pipe()
        self.pipe = os.fdopen(reader, "rb", buffering=0)
        environ = {**task.environ(environ), ERROR_FILE_VARIABLE: str(error_file)}
        try:
            self._started = start(task.command, environ, writer)
        finally:
            os.close(writer)
        os.set_blocking(reader, False)
        self.task = task
        self.name = task.name
        self.pid = self._started.pid
        self.sources: list[IO[bytes] | int] = [self.pipe]
        if self._started.sentinel is not None:
            self.sources.append(self._started.sentinel)
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._prefix = line_prefix
        self._printer = printer
        self._reader, self._noise = LineReader(), Noise(printer.told)
        self._log = TaskLog(log_dir, task.name) if log_dir else None
        self.has_said_why = False
        self._killed_at = math.inf

    @property
    def uncaught(self) -> Uncaught | None:
        """The exception that ends the process, as soon as the process has written it."""
        return read_uncaught(self._error_file)

    def copy_output(self) -> int | None:
        """Prints the new output; returns its size: 0 at the end, None if there is none yet."""
        try:
            data = os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return None
        if self._log:
            self._log.write(data)
        self._show(self._reader.feed(data, time.monotonic()))
        return len(data)

    def explain_failure(self) -> None:
        """Prints the task's last lines and a hint, unless the task itself has said why."""
        if self.last_lines and not self.uncaught and not self.has_said_why:
            log(f"the last lines of {self.name}:")
            for line in self.last_lines:
                print(f"[{self.name}] {line}".rstrip(), file=sys.stderr, flush=True)
            if remedy := remedy_for("\n".join(self.last_lines)):
                log(f"hint: {remedy}")

    def has_ended(self) -> bool:
        return self._started.has_ended()

    def kill(self) -> None:
        """Kills the task and its children."""
        self.signal(signal.SIGKILL)
        self._killed_at = min(self._killed_at, time.monotonic())

    @property
    def is_stuck(self) -> bool:
        """Whether the kernel has not ended it in `KILL_SECONDS` after it was killed.

        The kernel cannot end a thread that waits for a disk, or for a network file system whose
        server is gone (`man 7 signal`, uninterruptible sleep). The process of such a thread never
        ends, also when its main thread has ended by itself.
        """
        if not self.has_ended() and status(self.pid) == psutil.STATUS_ZOMBIE:
            self.kill()
        return time.monotonic() > self._killed_at + KILL_SECONDS

    def signal(self, number: int) -> None:
        """Sends a signal to the task and its children. Must not be called after `close`."""
        with suppress(ProcessLookupError):
            try:
                os.killpg(self.pid, number)
            except ProcessLookupError:
                # A task of the fork server creates its group a moment after its start.
                if not self.has_ended():
                    os.kill(self.pid, number)

    def close(self) -> int:
        """Kills the rest of the group, prints the rest of the output, returns the exit code."""
        self.signal(signal.SIGKILL)
        code = self._started.wait()
        # The filter of `tfdist.process.log_level` ends a moment later. Another process that has
        # left the group may keep the pipe open for longer.
        until = time.monotonic() + _LAST_SECONDS
        while wait([self.pipe.fileno()], max(0.0, until - time.monotonic())) and self.copy_output():
            pass
        self._show(self._reader.finish())
        self.pipe.close()
        if self._log:
            self._log.close()
        return code

    def _show(self, lines: Sequence[str]) -> None:
        self.has_said_why |= any(line.startswith("tfdist: error: ") for line in lines)
        shown = [line for line in lines if self._noise.keeps(line)]
        self.last_lines.extend(shown)
        self._printer.write("".join(f"{(self._prefix + line).rstrip()}\n" for line in shown))


def how_it_ended(code: int) -> str:
    """An exit code of `Process.close` in words."""
    if code == EXIT_PREEMPTED:
        return f"was preempted, saved a checkpoint and exited with code {code}"
    if code > 0:
        return f"failed with exit code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"
