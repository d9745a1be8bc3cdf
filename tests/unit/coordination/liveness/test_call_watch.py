"""Which of the calls of a process do not return, as its reports tell."""

from __future__ import annotations

import queue
import threading

import pytest

from tfdist.coordination.liveness.call_watch import ALIVE, CallWatch, report_calls

pytestmark = pytest.mark.stacks("newest")


@pytest.fixture
def watch() -> CallWatch:
    return CallWatch(["worker:0", "worker:1"], timeout=30.0)


TASKS = {"worker:0", "worker:1"}


def pass_time(watch: CallWatch, seconds: int, *reported: str, answering: set[str] = TASKS) -> None:
    """Lets time pass second by second, in which some reports arrive."""
    for _ in range(seconds):
        watch.advance(1.0, answering)
        for name in reported:
            watch.receive(name)


def test_tasks_that_return_their_calls_are_not_silent(watch: CallWatch) -> None:
    pass_time(watch, 1000, ALIVE, "worker:0", "worker:1")
    assert watch.silent() is None


def test_a_task_that_stops_returning_calls_is_named_after_the_timeout(watch: CallWatch) -> None:
    pass_time(watch, 5, ALIVE, "worker:0", "worker:1")
    pass_time(watch, 29, ALIVE, "worker:0")
    assert watch.silent() is None
    pass_time(watch, 1, ALIVE, "worker:0")
    assert watch.silent() == "worker:1"


def test_silence_counts_only_while_the_task_answers_other_connections(watch: CallWatch) -> None:
    pass_time(watch, 5, ALIVE, "worker:0", "worker:1")
    pass_time(watch, 1000, ALIVE, "worker:0", answering={"worker:0"})
    assert watch.silent() is None
    # Another process has replaced it; this process must connect to it.
    pass_time(watch, 29, ALIVE, "worker:0")
    assert watch.silent() is None
    pass_time(watch, 1, ALIVE, "worker:0")
    assert watch.silent() == "worker:1"


def test_a_task_counts_from_its_first_report(watch: CallWatch) -> None:
    pass_time(watch, 1000, ALIVE, "worker:0")
    assert watch.silent() is None


def test_a_task_that_is_away_is_not_awaited(watch: CallWatch) -> None:
    pass_time(watch, 5, ALIVE, "worker:0", "worker:1")
    watch.receive("-worker:1")
    assert watch.away == {"worker:1"}
    pass_time(watch, 1000, ALIVE, "worker:0", "-worker:1", answering={"worker:0"})
    assert watch.silent() is None
    # It has come back, and this process does not connect to it.
    pass_time(watch, 30, ALIVE, "worker:0", "-worker:1")
    assert watch.silent() == "worker:1"
    watch.receive("worker:1")
    assert watch.away == set() and watch.silent() is None


def test_a_process_that_reports_nothing_has_more_time(watch: CallWatch) -> None:
    pass_time(watch, 5, ALIVE, "worker:0", "worker:1")
    pass_time(watch, 290)
    assert watch.silent() is None
    # It has computed for long in an extension that holds the lock of the interpreter.
    pass_time(watch, 5, ALIVE)
    assert watch.silent() is None


def test_a_process_that_stays_blocked_is_found(watch: CallWatch) -> None:
    pass_time(watch, 5, ALIVE, "worker:0", "worker:1")
    pass_time(watch, 300)
    assert watch.silent() == ALIVE


def test_each_return_is_reported_and_a_call_that_hangs_is_not() -> None:
    reports: queue.SimpleQueue[str] = queue.SimpleQueue()
    release = threading.Event()

    def fail() -> bool:
        raise ValueError("The worker is gone.")

    def write(name: str) -> None:
        if release.is_set():
            raise BrokenPipeError  # Ends the threads.
        reports.put(name)

    calls = {"worker:0": fail, "worker:1": release.wait, "worker:2": lambda: False}
    report_calls(calls, 0.01, write)
    found = {reports.get(timeout=60) for _ in range(20)}
    release.set()
    assert found == {ALIVE, "worker:0", "-worker:2"}
