"""The output of several tasks as one stream of whole lines, each with its task's name.

    lines = LineReader()
    for text in lines.feed(b"loss 0.5\nloss", now=time.monotonic()):
        print(prefix("worker:0", colour=None) + text)

A progress bar overwrites its line with carriage returns, which lines of several tasks cannot: of
such a line its last state is shown when it ends, and before that its state every ten seconds.
"""

from __future__ import annotations

import math

PROGRESS_SECONDS = 10.0

_COLOURS = (36, 33, 35, 32, 34, 31)  # cyan, yellow, magenta, green, blue, red


class LineReader:
    """Makes lines of the bytes of one task."""

    def __init__(self) -> None:
        self._rest = b""
        self._shown_at = -math.inf

    def feed(self, data: bytes, now: float) -> list[str]:
        """The lines that `data` completes, without their ends.

        Args:
          data: what the task has written; bytes that are not UTF-8 are replaced.
          now: seconds on any clock that does not go back.
        """
        *ended, self._rest = (self._rest + data).split(b"\n")
        lines = [_visible(line) for line in ended]
        overwritten, _, current = self._rest.rpartition(b"\r")
        state = _visible(overwritten)
        due = now - self._shown_at >= PROGRESS_SECONDS
        # A carriage return that nothing follows may be the first half of a line's end.
        if current and state and due and not lines:
            lines = [state]
            self._rest = current
        if lines:
            self._shown_at = now
        return lines

    def finish(self) -> list[str]:
        """The last line, where the task ended in the middle of one."""
        rest, self._rest = _visible(self._rest), b""
        return [rest] if rest else []


def prefix(name: str, colour: int | None) -> str:
    """What stands before each line of task `name`; `colour` is its number in the job, or None."""
    if colour is None:
        return f"[{name}] "
    return f"\033[{_COLOURS[colour % len(_COLOURS)]}m[{name}]\033[0m "


def _visible(line: bytes) -> str:
    """What a terminal would show of a line: the text after its last carriage return."""
    # Keras goes back over its bar with backspaces before the carriage return.
    states = [state for state in line.replace(b"\b", b"").split(b"\r") if state]
    return states[-1].decode("utf-8", errors="replace") if states else ""
