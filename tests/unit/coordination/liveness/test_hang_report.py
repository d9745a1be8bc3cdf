"""Which task the hang report names, and what it contains."""

from __future__ import annotations

import pytest

from tfdist.coordination.liveness import activity, hang_report
from tfdist.coordination.liveness.activity import Record, State
from tfdist.coordination.liveness.task_report import TaskReport

pytestmark = pytest.mark.stacks("newest")

NOW = 1_800_000_000.0


def task(
    name: str,
    steps: int = 5,
    code: str = "",
    doing: str = activity.TRAINING,
    file_wait: str = "",
) -> TaskReport:
    state = State(name, "host1", 4711, "job", doing, NOW - 60, steps, NOW - 62)
    events = ((NOW - 63.5, "training"), (NOW - 62, f"step {steps}"))
    return TaskReport(Record(state, events), code, f"Thread of {name}\n", file_wait)


@pytest.mark.parametrize(
    ("reports", "culprit"),
    [
        ([task("worker:0"), None], "worker:1 does not answer"),
        (
            [task("worker:0", 6), task("worker:1", 5, "train.py:40 in slow")],
            "worker:1 is in train.py:40 in slow",
        ),
        # Also if the others have not made more steps.
        (
            [task("worker:0"), task("worker:1", 5, "train.py:40 in slow")],
            "worker:1 is in train.py:40 in slow",
        ),
        (
            [task("worker:0", 5, "a.py:1 in f"), task("worker:1", 6, "", file_wait="reads /a")],
            "worker:1 reads /a",
        ),
        (
            [task("worker:0", 5, "a.py:1 in f", file_wait="opens /a")],
            "worker:0 opens /a, in a.py:1 in f",
        ),
        ([task("worker:0", 5), task("worker:1", 6)], "worker:0 has made 5 steps, and others 6"),
        (
            [task("worker:0", 5, "a.py:1 in f"), task("worker:1", 6, "a.py:9 in g")],
            "worker:0 has made 5 steps, and others 6: it is in a.py:1 in f",
        ),
        # A server makes no steps.
        (
            [task("chief:0"), task("worker:0", 0, "a.py:1 in f", activity.SERVING)],
            "worker:0 is in a.py:1 in f",
        ),
        (
            [task("worker:0"), task("worker:1")],
            "all tasks wait in TensorFlow, after the same number of steps",
        ),
        (
            [task("worker:0", 5, "a.py:1 in f"), task("worker:1", 5, "a.py:1 in f")],
            "all tasks are in their own code, such as worker:0 in a.py:1 in f",
        ),
        ([task("worker:0", 5, "a.py:1 in f")], "worker:0 is in a.py:1 in f"),
    ],
)
def test_the_culprit(reports: list[TaskReport | None], culprit: str) -> None:
    names = [f"worker:{number}" for number in range(len(reports))]
    named = {
        each.record.state.task if each else name for each, name in zip(reports, names, strict=True)
    }
    found = dict(zip(sorted(named), reports, strict=True))
    assert str(hang_report.find_culprit(found)) == culprit


@pytest.mark.parametrize(
    ("reports", "waits_for_lost", "busy"),
    [
        ([task("worker:0", doing=activity.SAVING), task("worker:1")], False, "worker:0 is saving"),
        ([task("worker:0"), task("ps:0", doing=activity.SERVING)], False, ""),
        ([task("worker:0"), None], False, ""),
        ([task("worker:0"), None], True, "worker:1 does not answer"),
    ],
)
def test_what_may_take_longer_than_a_step(
    reports: list[TaskReport | None], waits_for_lost: bool, busy: str
) -> None:
    found = {f"worker:{number}": report for number, report in enumerate(reports)}
    assert hang_report.busy(found, waits_for_lost=waits_for_lost) == busy


def test_the_report_shows_every_task() -> None:
    reports = {
        "worker:0": task("worker:0"),
        "worker:1": None,
        "ps:0": task("ps:0", doing=activity.SERVING),
    }
    text = hang_report.text("no step for 62 s", "worker:1 does not answer", reports, now=NOW)
    assert hang_report.finding(text) == "worker:1 does not answer"
    assert text.splitlines()[:7] == [
        "2027-01-15 08:00:00 UTC: no step for 62 s",
        "worker:1 does not answer",
        "",
        "task      process     does             for   steps  last step  code",
        "worker:0  host1:4711  training         60 s  5      62 s ago",
        "worker:1              does not answer",
        "ps:0      host1:4711  serving          60 s",
    ]
    assert "worker:0: Python stacks" in text and "Thread of worker:0\n" in text
    assert "      63.5 s ago  training\n      62.0 s ago  step 5\n" in text
    assert "worker:1: Python stacks" not in text
