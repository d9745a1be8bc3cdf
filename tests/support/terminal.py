"""A terminal: runs a command in a pseudoterminal, and tells what its screen shows.

with Terminal(["tfdist", "run", …], rows=30, columns=120) as terminal:
    terminal.wait_for("epoch 2 of 3", deadline=60)
    code = terminal.wait(deadline=60)
    print(terminal.text)
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pyte

from tests.support.patience import PATIENCE


class Terminal:
    """A command with a terminal of its own as its standard streams.

    Args:
      command: the command.
      rows: the height.
      columns: the width.
      environ: variables beside those of this process.
      directory: its current directory.

    Attributes:
      raw: all that the command has written.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        rows: int = 40,
        columns: int = 120,
        environ: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, rows, history=1000)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._main, own = os.openpty()
        fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        hidden = ("COLUMNS", "LINES", "NO_COLOR", "TF_CONFIG")
        inherited = {name: value for name, value in os.environ.items() if name not in hidden}
        self.process = subprocess.Popen(
            command,
            stdin=own,
            stdout=own,
            stderr=own,
            cwd=directory,
            env={**inherited, "TERM": "xterm-256color", **(environ or {})},
            start_new_session=True,
        )
        os.close(own)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            # `tfdist run` ends its tasks.
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=60 * PATIENCE)
        os.close(self._main)

    @property
    def text(self) -> str:
        """The lines that the screen shows, and those that have left it."""
        history = [
            "".join(line[column].data for column in range(self._screen.columns)).rstrip()
            for line in self._screen.history.top
        ]
        return "\n".join([*history, *map(str.rstrip, self._screen.display)]).rstrip()

    def styled(self) -> list[list[tuple[str, str, bool]]]:
        """The characters of the screen, with their colors and whether they are bold."""
        return [
            [
                (cell.data, cell.fg, cell.bold)
                for cell in (line[c] for c in range(self._screen.columns))
            ]
            for line in (self._screen.buffer[row] for row in range(self._screen.lines))
        ]

    def wait_for(self, text: str, *, deadline: float) -> None:
        """Waits until the screen shows a text, for `PATIENCE` times the seconds of `deadline`."""
        until = time.monotonic() + PATIENCE * deadline
        while text not in self.text:
            assert self.read() and time.monotonic() < until, f"no {text!r} in:\n{self.text}"

    def wait(self, *, deadline: float) -> int:
        """The exit code of the command, after all of its output."""
        until = time.monotonic() + PATIENCE * deadline
        while self.read():
            assert time.monotonic() < until, self.text
        return self.process.wait(timeout=deadline)

    def read(self) -> bool:
        """Shows what the command has written in the meantime; whether it may write more."""
        ready, _, _ = select.select([self._main], [], [], 0.1)
        if ready:
            try:
                data = os.read(self._main, 1 << 16)
            except OSError:  # The other end is closed.
                return False
            self.raw += data
            self._stream.feed(data)
        return True
