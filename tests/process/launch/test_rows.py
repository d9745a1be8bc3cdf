"""What a host tells of its tasks, and what the panel makes of it."""

from __future__ import annotations

import os
import time

import pytest

from tfdist.coordination.reports.activity import Activity
from tfdist.launch.remote.rows import ROWS_MARK, HostTasks, RowPrinter, Rows

pytestmark = pytest.mark.stacks("2.15")


def told(printer: RowPrinter, capfdbinary: pytest.CaptureFixture[bytes]) -> bytes:
    printer.look()
    line = capfdbinary.readouterr().out
    assert line.startswith(ROWS_MARK.encode())
    return line


def test_the_rows_of_a_host_arrive(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process is the task, the launcher of its host and the end of the connection.
    activity = Activity("worker:1")
    activity.describe(output="/shared/run1", loss=0.5, goal=100)
    host = HostTasks("n2")
    assert [(row.name, row.doing) for row in host.look(0.0)] == [("n2", "waiting")]
    host.started(os.getpid())
    assert [(row.name, row.doing) for row in host.look(0.0)] == [("n2", "running")]

    printer, rows = RowPrinter(), Rows()
    printer.started("worker:1", os.getpid())
    activity.made(7)
    rows.keep(told(printer, capfdbinary))
    (row,) = host.look(0.0)
    assert (row.name, row.doing, row.starts) == ("worker:1 on n2", "training", 1)
    assert row.state is not None
    assert (row.state.steps, row.state.loss, row.state.output) == (7, 0.5, "/shared/run1")

    # The clock of the host is an hour ahead.
    with monkeypatch.context() as patch:
        own = time.time
        patch.setattr(time, "time", lambda: own() + 3600)
        activity.made(8)
        line = told(printer, capfdbinary)
    rows.keep(line)
    (row,) = host.look(0.0)
    assert row.state is not None
    assert abs(row.state.last_step - time.time()) < 60

    host.ended("failed (1)")
    (row,) = host.look(0.0)
    assert (row.doing, row.cpu) == ("failed (1)", None)
    host.started(os.getpid())
    (row,) = host.look(0.0)
    assert row.starts == 2
