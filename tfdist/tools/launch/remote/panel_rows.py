"""What the tasks of a host do, on its way to the panel of `tfdist run --hosts`.

The launcher on the host prints lines of rows (`RowPrinter`). The end of the connection keeps the
newest line in memory (`Rows`), where the panel finds it (`HostTasks`).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace

from tfdist.coordination.liveness.activity import WAITING, State
from tfdist.process.thread_stacks import memory_file, new_memory_file
from tfdist.tools.launch.output import Printer
from tfdist.tools.watch.tasks import RUNNING, Row, WatchedTask, how_it_ended

#: Begins a line of rows: no line of a task does, because its name comes first.
ROWS_MARK = "\x1etfdist rows "

_NAME = "tfdist-rows"
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
        self._tasks[name].ended(how_it_ended(code))

    def look(self) -> None:
        now = time.time()
        rows = [asdict(row) for task in self._tasks.values() for row in task.look(now)]
        self.write(f"{ROWS_MARK}{json.dumps({'now': now, 'rows': rows})}\n")

    def finish(self, code: int) -> None:
        self.look()


class Rows:
    """The newest line of rows, in a file in memory."""

    def __init__(self) -> None:
        self._file = new_memory_file(_NAME)

    def keep(self, line: bytes) -> None:
        """Keeps a line that begins with `ROWS_MARK`."""
        content = json.loads(line[len(ROWS_MARK) :])
        # The host's clock may differ.
        content["ahead"] = content.get("now", 0.0) - time.time()
        data = json.dumps(content).encode()
        os.ftruncate(self._file, len(data))
        os.pwrite(self._file, data, 0)


class HostTasks:
    """The tasks of a host, which the process of its connection knows.

    Args:
      host: the host.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._pid = 0
        self._starts = 0
        self._doing = WAITING
        self._rows: list[Row] = []

    def started(self, pid: int) -> None:
        """The connection has a new process."""
        self._starts += 1
        self._pid, self._doing = pid, RUNNING
        self._rows = []

    def ended(self, how: str) -> None:
        """The process of the connection has ended, and with it the tasks."""
        self._rows = self._read()
        self._pid, self._doing = 0, how
        self._rows = [
            row if row.cpu is None else replace(row, doing=how, cpu=None, memory=None)
            for row in self._rows
        ]

    def look(self, now: float) -> list[Row]:
        """The tasks at this moment; one row for the host until it has said something."""
        self._rows = self._read()
        return self._rows or [Row(self._host, self._doing, None, None, None, None, self._starts)]

    def _read(self) -> list[Row]:
        path = memory_file(self._pid, _NAME) if self._pid else None
        if path is None:
            return self._rows
        try:
            content = json.loads(path.read_bytes())
            return [self._row(row, content["ahead"]) for row in content["rows"]]
        except (OSError, ValueError):  # It is being written, or has gone.
            return self._rows
        except (KeyError, TypeError):  # The host has another version of tfdist.
            return []

    def _row(self, content: dict[str, object], ahead: float) -> Row:
        row = Row(**content)  # type: ignore[arg-type]
        state = row.state
        if isinstance(state, dict):
            known = State.of(state)
            last = known.last_step - ahead if known.last_step else 0.0
            state = replace(known, since=known.since - ahead, last_step=last)
        name = name_on(row.name, self._host)
        return replace(row, name=name, state=state, starts=row.starts + self._starts - 1)


def name_on(task: str, host: str) -> str:
    """The name of a task's row."""
    return f"{task} on {host}"
