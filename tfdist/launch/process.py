"""A task as a process of this machine: started, listened to, ended.

process = Process(task, prefix("worker:0"), os.environ, error_file=Path("/tmp/worker-0.json"))
process.copy_output()           # whenever its pipe has something
if process.has_ended():
    print(how_it_ended(process.close()))

It is killed when the launcher is gone, however that ended, and ends with all that it has started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tfdist.coordination.preemption import EXIT_PREEMPTED
from tfdist.launch.output import LineReader
from tfdist.launch.spec import TaskSpec
from tfdist.launch.starting import Start, spawn
from tfdist.runtime.excepthook import ERROR_FILE_VARIABLE, Uncaught, read_uncaught

_LAST_LINES = 20


class Process:
    """A started task and what it has written.

    Args:
      task: what to start.
      line_prefix: goes before each line that it writes.
      environ: what it inherits, beside what the task adds.
      error_file: where it says which exception has ended it; see `tfdist.runtime.excepthook`.
      start: what starts it, with a process group of its own, so that what it starts can be ended
        with it.
    """

    def __init__(
        self,
        task: TaskSpec,
        line_prefix: str,
        environ: Mapping[str, str],
        error_file: Path,
        start: Start = spawn,
    ) -> None:
        inherited = {name: value for name, value in environ.items() if name not in task.removed}
        error_file.unlink(missing_ok=True)
        self._error_file = error_file
        reader, writer = os.pipe()
        self.pipe = os.fdopen(reader, "rb", buffering=0)
        environ = {**inherited, **task.environment, ERROR_FILE_VARIABLE: str(error_file)}
        try:
            self._started = start(task.command, environ, writer)
        finally:
            os.close(writer)
        self.task = task
        os.set_blocking(reader, False)
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._prefix = line_prefix
        self._reader = LineReader()

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def uncaught(self) -> Uncaught | None:
        """The exception that ends it, from the moment when it knows."""
        return read_uncaught(self._error_file)

    def copy_output(self) -> int | None:
        """Shows what is there; gives its size, 0 at the end, None where nothing is there yet."""
        try:
            data = os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return None
        self._show(self._reader.feed(data, time.monotonic()))
        return len(data)

    @property
    def sources(self) -> tuple[IO[bytes] | int, ...]:
        """What can be read when the task has written something, or has ended."""
        sentinel = self._started.sentinel
        return (self.pipe,) if sentinel is None else (self.pipe, sentinel)

    def has_ended(self) -> bool:
        return self._started.has_ended()

    def signal(self, number: int) -> None:
        """Sends a signal to the task and to what it has started. Not after `close`."""
        with suppress(ProcessLookupError):
            try:
                os.killpg(self._started.pid, number)
            except ProcessLookupError:
                # A copy makes its group a moment after its start.
                if not self.has_ended():
                    os.kill(self._started.pid, number)

    def close(self) -> int:
        """Kills what is left of the group, shows the rest of the output, gives the exit code."""
        self.signal(signal.SIGKILL)
        code = self._started.wait()
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


def how_it_ended(code: int) -> str:
    """An exit code of `Process.close` in words."""
    if code == EXIT_PREEMPTED:
        return f"was preempted, saved a checkpoint and exited with code {code}"
    if code > 0:
        return f"failed with exit code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"
