"""Merges the output of several tasks into one stream of lines, each with its task's name.

    lines = LineReader()
    for text in lines.feed(b"loss 0.5\nloss", now=time.monotonic()):
        print(prefix("worker:0", color=None) + text)

A progress bar overwrites its line with carriage returns, which does not work for several tasks.
Such a line is printed in its current state every ten seconds, and in its last state at the end.
"""

from __future__ import annotations

import math

PROGRESS_SECONDS = 10.0

_COLORS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red


class LineReader:
    """Splits the output of one task into lines."""

    def __init__(self) -> None:
        self._rest = b""
        self._shown_at = -math.inf

    def feed(self, data: bytes, now: float) -> list[str]:
        """The lines that `data` completes, without line ends.

        Args:
          data: what the task has written; bytes that are not UTF-8 are replaced.
          now: seconds on any clock that does not go back.
        """
        *ended, self._rest = (self._rest + data).split(b"\n")
        lines = [_visible(line) for line in ended]
        overwritten, _, current = self._rest.rpartition(b"\r")
        state = _visible(overwritten)
        due = now - self._shown_at >= PROGRESS_SECONDS
        # A carriage return at the end may be the first half of a line end.
        if current and state and due and not lines:
            lines = [state]
            self._rest = current
        if lines:
            self._shown_at = now
        return lines

    def finish(self) -> list[str]:
        """The last line, if the task ended without a line end."""
        rest, self._rest = _visible(self._rest), b""
        return [rest] if rest else []


def prefix(name: str, color: int | None) -> str:
    """The prefix of each line of a task; `color` is the task's number, or None for no color."""
    if color is None:
        return f"[{name}] "
    return f"\033[{_COLORS[color % len(_COLORS)]}m[{name}]\033[0m "


def _visible(line: bytes) -> str:
    """What a terminal shows of a line: the text after its last carriage return."""
    # Keras prints backspaces before the carriage return.
    states = [state for state in line.replace(b"\b", b"").split(b"\r") if state]
    return states[-1].decode("utf-8", errors="replace") if states else ""
