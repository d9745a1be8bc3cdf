"""What a host tells of its tasks, and what the panel makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdist.tools.launch.remote.panel_rows import ROWS_MARK, HostTasks, RowPrinter, keep_rows

pytestmark = pytest.mark.stacks("newest")

TASK = """
from tfdist.coordination.liveness.activity import Activity
record = Activity("worker:1")
record.describe(output="/shared/run1", loss=0.5, goal=100)
record.made(7)
print("ready", flush=True)
input()
"""


@pytest.fixture
def task() -> Iterator[int]:
    """The process ID of a task."""
    with subprocess.Popen(
        [sys.executable, "-c", TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def told(printer: RowPrinter, capfdbinary: pytest.CaptureFixture[bytes]) -> bytes:
    printer.look()
    line = capfdbinary.readouterr().out
    assert line.startswith(ROWS_MARK.encode())
    return line


def test_the_rows_of_a_host_arrive(
    task: int,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # This process is the launcher of the host and the end of the connection.
    file = tmp_path / "0.rows"
    host = HostTasks("n2", file)
    assert [(row.name, row.doing) for row in host.look(0.0)] == [("n2", "waiting")]
    host.started(os.getpid())
    assert [(row.name, row.doing) for row in host.look(0.0)] == [("n2", "running")]

    printer = RowPrinter()
    printer.started("worker:1", task)
    keep_rows(told(printer, capfdbinary), file)
    (row,) = host.look(0.0)
    assert (row.name, row.doing, row.starts) == ("worker:1 on n2", "training", 1)
    assert row.state is not None
    assert (row.state.steps, row.state.loss, row.state.output) == (7, 0.5, "/shared/run1")
    assert abs(row.state.last_step - time.time()) < 60

    with monkeypatch.context() as patch:
        own = time.time
        patch.setattr(time, "time", lambda: own() + 3600)
        line = told(printer, capfdbinary)
    # The clock of the host is an hour ahead of this one.
    keep_rows(line, file)
    (row,) = host.look(0.0)
    assert row.state is not None
    assert abs(row.state.last_step + 3600 - time.time()) < 60

    other = '{"now": 0.0, "rows": [{"name": "worker:1", "of_another_version": 1}]}'
    keep_rows(f"{ROWS_MARK}{other}".encode(), file)
    assert [(row.name, row.doing) for row in host.look(0.0)] == [("n2", "running")]
    keep_rows(line, file)

    host.ended("failed (1)")
    (row,) = host.look(0.0)
    assert (row.doing, row.cpu) == ("failed (1)", None)
    host.started(os.getpid())
    assert [(row.name, row.doing) for row in host.look(0.0)] == [("n2", "running")]
    keep_rows(line, file)
    (row,) = host.look(0.0)
    assert row.starts == 2
