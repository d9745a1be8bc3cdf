"""The record of what a task does, as other processes read it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.processes import ROOT
from tfdist.coordination.liveness import activity
from tfdist.coordination.liveness.activity import Activity

pytestmark = pytest.mark.stacks("newest")

TASK = """
import time
from tfdist.coordination.liveness.activity import Activity
record = Activity("worker:1", "job")
record.describe(output="/shared/run1")
record.made(7)
print("ready", flush=True)
time.sleep(100)
"""


def test_the_last_hundred_events_are_kept_in_order() -> None:
    record = Activity("worker:0")
    for number in range(250):
        record.event(f"event {number}")
    assert [text for _, text in record.record.events] == [f"event {n}" for n in range(150, 250)]


def test_a_long_event_is_cut() -> None:
    record = Activity("worker:0")
    record.event("é" * 500)
    (_, text) = record.record.events[-1]
    assert text == "é" * 100


def test_another_process_reads_the_record_of_a_stopped_one() -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TASK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGSTOP)
            record = activity.read(process.pid)
            assert record is not None
            assert record.state.task == "worker:1" and record.state.pid == process.pid
            assert record.state.output == "/shared/run1" and record.state.steps == 7
            # The first step ends the start.
            assert [text for _, text in record.events] == ["starting", "step 7", "training"]
            assert record in activity.tasks_of_this_machine()
        finally:
            process.kill()


def test_a_kernel_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> int:
        raise OSError

    monkeypatch.setattr(os, "memfd_create", refuse)
    record = Activity("worker:0")
    record.made(3)
    assert record.record.state.steps == 3


def test_a_process_that_is_no_task_has_no_record() -> None:
    assert activity.read(1 << 22) is None
    assert all(record.state.pid != os.getppid() for record in activity.tasks_of_this_machine())
