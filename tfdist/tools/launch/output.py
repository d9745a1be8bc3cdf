"""Merges the output of several tasks into one stream of lines, each with its task's name.

    lines = LineReader()
    for text in lines.feed(b"loss 0.5\nloss", now=time.monotonic()):
        printer.write(prefix("worker:0", color=None) + text + "\n")

A progress bar overwrites its line with carriage returns, which does not work for several tasks.
Such a line is printed in its current state every ten seconds, and in its last state at the end.
"""

from __future__ import annotations

import math
import os
import signal
import sys

from tfdist.errors import EXIT_FAILED, log

PROGRESS_SECONDS = 10.0
#: The longest line, in bytes; the rest of a longer one is left out.
LINE_BYTES = 1 << 20

_COLORS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red


class LineReader:
    """Splits the output of one task into lines."""

    def __init__(self) -> None:
        # What the line shows, after and before its last carriage return.
        self._line = bytearray()
        self._state = b""
        self._shown_at = -math.inf

    def feed(self, data: bytes, now: float) -> list[str]:
        """The lines that `data` completes, without line ends.

        Args:
          data: what the task has written; bytes that are not UTF-8 are replaced.
          now: seconds on any clock that does not go back.
        """
        lines = []
        *ended, last = data.split(b"\n")
        for part in ended:
            self._add(part)
            lines += self.finish() or [""]
        self._add(last)
        # A carriage return at the end may be the first half of a line end.
        if self._line and self._state and not lines and now - self._shown_at >= PROGRESS_SECONDS:
            lines = [_text(self._state)]
            self._state = b""
        if lines:
            self._shown_at = now
        return lines

    def finish(self) -> list[str]:
        """The last line, if the task ended without a line end."""
        # What a terminal shows: the text after the last carriage return that some text follows.
        shown = bytes(self._line) or self._state
        self._line.clear()
        self._state = b""
        return [_text(shown)] if shown else []

    def _add(self, part: bytes) -> None:
        # Keras prints backspaces before the carriage return.
        *overwritten, current = part.replace(b"\b", b"").split(b"\r")
        for text in overwritten:
            self._line += text
            # The next text overwrites the line.
            self._state = bytes(self._line) or self._state
            self._line.clear()
        self._line += current
        del self._line[LINE_BYTES + 1 :]


def _text(line: bytes) -> str:
    cut = " … (a longer line)" if len(line) > LINE_BYTES else ""
    return line[:LINE_BYTES].decode("utf-8", errors="replace") + cut


class Printer:
    """Standard output, which may be closed at any time.

    `tfdist.tools.launch.screen` also shows what the tasks do.

    Attributes:
      failure: the exit code of a job whose output can no longer be printed; None so far.
      told: the errors that the tasks have reported since they were started together.
      seconds: between two calls of `look`; infinite if there is nothing to look at.
    """

    seconds = math.inf

    def __init__(self) -> None:
        self.failure: int | None = None
        self.told: set[str] = set()

    def write(self, text: str) -> None:
        """Prints, or says once on stderr why it cannot."""
        if self.failure is not None:
            return
        try:
            sys.stdout.buffer.write(text.encode())
            sys.stdout.buffer.flush()
        except OSError as error:
            # As of a program that the signal ends.
            self.failure = (
                128 + signal.SIGPIPE if isinstance(error, BrokenPipeError) else EXIT_FAILED
            )
            log(f"cannot print the output of the tasks ({error.strerror}): ending them")
            # Python flushes stdout again at exit; that must not fail a second time.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def started(self, name: str, pid: int) -> None:
        """Called when a task has a new process."""

    def ended(self, name: str, code: int) -> None:
        """Called when a task's process has ended; `code` is its exit code, or -n after signal n."""

    def failed(self, how: str) -> None:
        """Called when a task has failed; `how` says in words what happened to it."""

    def look(self) -> None:
        """Shows what the tasks do now."""

    def finish(self, code: int) -> None:
        """Called when the job has ended with this exit code."""


def prefix(name: str, color: int | None) -> str:
    """The prefix of each line of a task; `color` is the task's number, or None for no color."""
    if color is None:
        return f"[{name}] "
    return f"\033[{_COLORS[color % len(_COLORS)]}m[{name}]\033[0m "
