"""Shows a panel of the tasks at the bottom of a terminal, below the lines that they print.

screen = Screen()                    # a `Printer`
screen.write("[worker:0] epoch 1\\n")
screen.started("worker:0", pid)
screen.look()                        # every `screen.seconds`
screen.finish(code)                  # leaves the last panel, and prints the summary
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from typing import IO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tfdist.errors import log
from tfdist.tools.launch.output import Printer
from tfdist.tools.watch import panel
from tfdist.tools.watch.summary import Summary
from tfdist.tools.watch.tasks import WatchedTask, state_after

# Between two panels, and between two writes of lines, each of which draws the panel again.
_PANEL_SECONDS, _LINES_SECONDS = 0.5, 0.1


class Screen(Printer):
    """Prints above a panel, from the start of the first task, the chief, to `finish`.

    Args:
      watch: creates the `WatchedTask` of a process from its name.
    """

    seconds = _PANEL_SECONDS

    def __init__(self, watch: Callable[[str], WatchedTask] = WatchedTask) -> None:
        super().__init__()
        self._watch = watch
        # rich must not write to stdout by itself, which may be closed at any time.
        self._console = Console(
            file=cast(IO[str], _File(super().write)), force_terminal=True, highlight=False
        )
        # rich would print what goes to stderr on stdout, also where that is another file.
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._stderr = sys.stderr
        self._tasks: dict[str, WatchedTask] = {}
        self._lines: list[str] = []
        self._written = self._looked = 0.0

    def write(self, text: str) -> None:
        """Prints text above the panel when its line has ended, at once or with the next ones."""
        self._lines.append(text)
        if text.endswith("\n") and time.monotonic() - self._written >= _LINES_SECONDS:
            self._flush()

    def started(self, name: str, pid: int) -> None:
        if not self._tasks:
            self._looked = time.time()
            self._summary = Summary(self._looked)
            self._live.start()
            if sys.stderr.isatty():
                sys.stderr = _File(self.write)
        self._tasks.setdefault(name, self._watch(name)).started(pid)

    def ended(self, name: str, code: int) -> None:
        self._tasks[name].ended(state_after(code))

    def failed(self, how: str) -> None:
        self._summary.failed(how)

    def look(self) -> None:
        self._look(has_bar=True)

    def finish(self, code: int) -> None:
        if not self._tasks:
            return
        # Steps that were made after the last look would be missing in the bar.
        self._look(has_bar=False)
        self._live.stop()
        sys.stderr = self._stderr
        for line in self._summary.lines(code, time.time()):
            log(line)

    def _look(self, *, has_bar: bool) -> None:
        now = time.time()
        rows = [row for task in self._tasks.values() for row in task.look(now)]
        self._summary.saw(rows, now - self._looked)
        self._looked = now
        self._flush()
        drawn = panel.render(rows, now, self._console.width, has_bar=has_bar)
        self._live.update(drawn, refresh=True)

    def _flush(self) -> None:
        self._written = time.monotonic()
        text = "".join(self._lines).removesuffix("\n")
        self._lines.clear()
        if text:
            self._console.print(Text.from_ansi(text), soft_wrap=True)


class _File(io.TextIOBase):
    """A text file that passes what is written to a function."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def write(self, text: str) -> int:
        self._write(text)
        return len(text)
