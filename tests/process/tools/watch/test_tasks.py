"""What a task does, seen from another process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tfdist.tools.watch.tasks import WatchedTask

pytestmark = pytest.mark.stacks("newest")

# Makes as many steps as it is told to.
TASK = """
from tfdist.coordination.liveness.activity import Activity
record = Activity("worker:0")
record.describe(epoch=1, epochs=2, resumed=100, goal=300, examples_per_step=32.0)
while True:
    print("ready", flush=True)
    record.made(int(input()))
"""


class Task:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.wait()

    def wait(self) -> None:
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def make(self, steps: int) -> None:
        print(steps, file=self.process.stdin, flush=True)
        self.wait()


@pytest.fixture
def task() -> Iterator[Task]:
    task = Task()
    with task.process:
        yield task
        task.process.kill()


def test_a_row_has_the_steps_the_rate_and_the_process(task: Task) -> None:
    watched = WatchedTask("worker:0")
    watched.started(task.process.pid)
    assert watched.look(time.time())[0].examples_per_second is None, "there is no step"
    task.make(1)
    watched.look(time.time())
    time.sleep(0.2)
    task.make(11)
    (row,) = watched.look(time.time())
    # Ten steps in at least 0.2 seconds.
    assert row.examples_per_second is not None and 0 < row.examples_per_second <= 10 * 32 / 0.2
    assert (row.doing, row.steps, row.starts) == ("training", 111, 1)
    assert row.memory is not None and row.memory > 1e6

    (later,) = watched.look(time.time() + 100)
    assert later.examples_per_second is not None
    assert later.examples_per_second < row.examples_per_second / 10, "no step was made"


def test_a_restarted_task_begins_anew_and_one_that_ended_keeps_its_steps(task: Task) -> None:
    watched = WatchedTask("worker:0")
    assert watched.look(time.time())[0].doing == "waiting"
    watched.started(task.process.pid)
    task.make(7)
    watched.look(time.time())
    watched.ended("killed (SIGKILL)")
    (row,) = watched.look(time.time())
    assert (row.doing, row.steps) == ("killed (SIGKILL)", 107)
    assert row.cpu is None and row.examples_per_second is None
    # Not a task of tfdist.
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watched.started(process.pid)
        (row,) = watched.look(time.time())
        assert (row.doing, row.steps, row.starts) == ("running", None, 2)
        process.communicate(b"\n")
    (row,) = watched.look(time.time())
    assert (row.doing, row.cpu) == ("running", None), "its launcher has not said how it ended"
