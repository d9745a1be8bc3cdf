"""Sends what the tasks of a host do to the panel of `tfdist run --hosts`.

The launcher on the host prints lines of rows (`RowPrinter`). The end of the connection keeps the
newest one in a file (`keep_rows`), where the panel finds it (`HostTasks`).
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

from tfdist.coordination.liveness.activity import State
from tfdist.process.atomic_file import replacing
from tfdist.tools.launch.output import Printer
from tfdist.tools.watch.tasks import RUNNING, Row, WatchedTask, state_after

#: Begins a line of rows: no line of a task does, because its name comes first.
ROWS_MARK = "\x1etfdist rows "

_SECONDS = 1.0


class RowPrinter(Printer):
    """Also prints the rows of this host's tasks, about once a second."""

    seconds = _SECONDS

    def __init__(self) -> None:
        super().__init__()
        self._tasks: dict[str, WatchedTask] = {}

    def started(self, name: str, pid: int) -> None:
        self._tasks.setdefault(name, WatchedTask(name)).started(pid)

    def ended(self, name: str, code: int) -> None:
        self._tasks[name].ended(state_after(code))

    def look(self) -> None:
        now = time.time()
        rows = [asdict(row) for task in self._tasks.values() for row in task.look(now)]
        self.write(f"{ROWS_MARK}{json.dumps({'now': now, 'rows': rows})}\n")

    def finish(self, code: int) -> None:
        self.look()


def rows_file(plan: Path) -> Path:
    """Where the newest rows of a host are: beside its plan."""
    return plan.with_suffix(".rows")


def keep_rows(line: bytes, file: Path) -> None:
    """Writes what follows `ROWS_MARK` in a line to a file."""
    # The job goes on if the disk is full.
    with suppress(OSError), replacing(file) as temporary:
        temporary.write_bytes(line[len(ROWS_MARK) :])


class HostTasks(WatchedTask):
    """The tasks of a host, of which the launcher sees one task: the connection.

    Args:
      host: the host.
      file: where the end of the connection keeps the newest rows.
    """

    def __init__(self, host: str, file: Path) -> None:
        super().__init__(host)
        self._file = file

    def started(self, pid: int) -> None:
        super().started(pid)
        self._file.unlink(missing_ok=True)

    def look(self, now: float) -> list[Row]:
        """The tasks at this moment; one row for the host until it has reported its tasks."""
        rows = self._read()
        if not rows:
            return [Row(self._name, self._doing, None, None, None, None, self._starts)]
        if self._doing == RUNNING:
            return rows
        return [
            row if row.cpu is None else replace(row, doing=self._doing, cpu=None, memory=None)
            for row in rows
        ]

    def _read(self) -> list[Row]:
        # It says nothing yet, or has another version of tfdist.
        with suppress(OSError, ValueError, KeyError, TypeError):
            with self._file.open("rb") as file:
                content, written = json.load(file), os.fstat(file.fileno()).st_mtime
            # The host's clock may differ.
            ahead = content["now"] - written
            return [self._row(row, ahead) for row in content["rows"]]
        return []

    def _row(self, content: dict[str, object], ahead: float) -> Row:
        row = Row(**content)  # type: ignore[arg-type]
        state = None
        if isinstance(row.state, dict):
            told = State.of(row.state)
            last = told.last_step and told.last_step - ahead
            state = replace(told, since=told.since - ahead, last_step=last)
        name = f"{row.name} on {self._name}"
        return replace(row, name=name, state=state, starts=row.starts + self._starts - 1)
