"""Who writes the hang report, and what ends a task."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tfdist.coordination.liveness import activity, hang_report, reporter
from tfdist.coordination.liveness.reporter import Reporter
from tfdist.coordination.liveness.task_report import TaskReport
from tfdist.errors import HangError
from tfdist.process import excepthook, thread_stacks
from tfdist.storage.output_directory import read_text, write_text

pytestmark = pytest.mark.stacks("newest")

CHIEF = ("127.0.0.1", 1)


class Ended(Exception):
    """In place of the end of the process."""


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    errors: list[BaseException] = []

    def end(error: BaseException) -> None:
        errors.append(error)
        raise Ended

    monkeypatch.setattr(excepthook, "end", end)
    monkeypatch.setattr(reporter, "_CHIEF_SECONDS", 0.5)
    monkeypatch.setattr(reporter, "_POLL_SECONDS", 0.05)
    return errors


def reporter_of(name: str) -> Reporter:
    return Reporter(name, job="job", token="secret", write=write_text, read=read_text)


def task(tmp_path: Path, *, is_chief: bool = True, waits_for_lost: bool = False) -> Reporter:
    """A task of two that trains; its watchdog does nothing by itself."""
    made = reporter_of("worker:0" if is_chief else "worker:1")
    made.watch(
        lambda: 0,
        tmp_path,
        step_timeout=0,
        is_chief=is_chief,
        waits_for_lost=waits_for_lost,
    )
    made.activity.made(5)
    made.endpoints = {"worker:1" if is_chief else "worker:0": CHIEF}
    return made


def answers(monkeypatch: pytest.MonkeyPatch, doing: str | None, *, silent: bool = True) -> None:
    """What the other task answers; None for no answer."""

    def ask(*_: object) -> TaskReport:
        if doing is None:
            raise OSError
        other = activity.Activity("other", "another job")
        other.made(5)
        if silent:
            other.describe(last_step=1.0)
        if doing != activity.TRAINING:
            other.enter(doing)
        return TaskReport(other.record, "", "")

    monkeypatch.setattr(hang_report, "ask", ask)


def test_the_chief_writes_the_report_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[BaseException]
) -> None:
    answers(monkeypatch, None)
    with pytest.raises(Ended):
        task(tmp_path)._on_silence(62.0, 60.0, tmp_path)
    (error,) = ended
    assert isinstance(error, HangError) and error.task == "worker:1"
    assert str(error) == (
        "no step for 62 s (--step_timeout): worker:1 does not answer. The Python stacks of all "
        f"tasks are in {tmp_path}/hang_report.txt"
    )
    text = (tmp_path / "hang_report.txt").read_text()
    assert hang_report.finding(text) == "worker:1 does not answer"
    assert os.listdir(tmp_path) == ["hang_report.txt"]


@pytest.mark.parametrize("hangs", [True, False])
def test_a_report_that_cannot_be_written_is_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: list[BaseException],
    capsys: pytest.CaptureFixture[str],
    hangs: bool,
) -> None:
    """The output directory is gone, or its file system does not answer."""
    answers(monkeypatch, None)
    missing = tmp_path / "missing"
    if hangs:
        monkeypatch.setattr(reporter, "_WRITE_SECONDS", 0.2)
        # A file system without an answer, for this thread: no reader opens the pipe.
        os.mkfifo(tmp_path / "pipe")
        monkeypatch.setattr(Path, "with_name", lambda path, _: tmp_path / "pipe")
    with pytest.raises(Ended):
        task(tmp_path)._on_silence(62.0, 60.0, missing)
    (error,) = ended
    assert str(error).endswith("The Python stacks of all tasks are above")
    printed = capsys.readouterr().err
    assert "no step for 62 s\nworker:1 does not answer\n" in printed
    assert "worker:0: Python stacks" in printed


@pytest.mark.parametrize("doing", [activity.SAVING, activity.EVALUATING, activity.STARTING])
def test_the_chief_waits_for_a_task_that_does_something_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: list[BaseException],
    capsys: pytest.CaptureFixture[str],
    doing: str,
) -> None:
    answers(monkeypatch, doing)
    chief = task(tmp_path)
    for seconds in (61.0, 62.0):
        chief._on_silence(seconds, 60.0, tmp_path)
    assert not ended and not os.listdir(tmp_path)
    # Said once.
    assert capsys.readouterr().err == f"tfdist: no step for 61 s: worker:1 is {doing}\n"
    with pytest.raises(Ended):
        chief._on_silence(600.0, 60.0, tmp_path)


def test_parameter_servers_wait_for_a_lost_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[BaseException]
) -> None:
    answers(monkeypatch, None)
    chief = task(tmp_path, waits_for_lost=True)
    chief._on_silence(61.0, 60.0, tmp_path)
    assert not ended


def test_another_task_takes_the_finding_of_the_chief(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[BaseException]
) -> None:
    answers(monkeypatch, activity.TRAINING)
    (tmp_path / "hang_report.txt").write_text("now: no step for 60 s\nworker:1 is in a.py:1 in f\n")
    with pytest.raises(Ended):
        task(tmp_path, is_chief=False)._on_silence(61.0, 60.0, tmp_path)
    assert "worker:1 is in a.py:1 in f. The Python stacks" in str(ended[0])


@pytest.mark.parametrize("doing", [None, activity.TRAINING])
def test_without_a_report_of_the_chief_another_task_writes_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ended: list[BaseException],
    doing: str | None,
) -> None:
    answers(monkeypatch, doing)
    old = tmp_path / "hang_report.txt"
    old.write_text("an old one\nworker:7 was it\n")
    os.utime(old, (1e9, 1e9))
    with pytest.raises(Ended):
        task(tmp_path, is_chief=False)._on_silence(61.0, 60.0, tmp_path)
    assert "worker:1: Python stacks" in old.read_text() and "worker:7" not in str(ended[0])


def test_a_task_does_not_wait_for_a_chief_that_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[BaseException]
) -> None:
    answers(monkeypatch, activity.TRAINING, silent=False)
    monkeypatch.setattr(reporter, "_CHIEF_SECONDS", 1000.0)
    with pytest.raises(Ended):
        task(tmp_path, is_chief=False)._on_silence(61.0, 60.0, tmp_path)
    assert len(ended) == 1


def test_a_task_without_endpoints_reports_itself(
    tmp_path: Path, ended: list[BaseException]
) -> None:
    alone = task(tmp_path, is_chief=False)
    alone.endpoints = {}
    with pytest.raises(Ended):
        alone._on_silence(61.0, 60.0, tmp_path)
    assert "worker:1: Python stacks" in (tmp_path / "hang_report.txt").read_text()


@pytest.mark.parametrize(
    ("is_chief", "what", "writes"),
    [
        (True, "worker:1 was lost", True),
        (False, "worker:0 was lost", True),
        (False, "worker:2 was lost", False),
    ],
)
def test_one_task_reports_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_chief: bool, what: str, writes: bool
) -> None:
    answers(monkeypatch, None)
    task(tmp_path, is_chief=is_chief).report_loss(what)
    assert (tmp_path / "hang_report.txt").exists() == writes


def test_no_task_ends_outside_of_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[BaseException]
) -> None:
    """`fit` was left by an exception, or a debugger waits."""
    found: list[float] = []
    monkeypatch.setattr(Reporter, "_on_silence", lambda self, seconds, *_: found.append(seconds))
    made = reporter_of("worker:0")

    def fit(step_timeout: float) -> None:
        made.watch(lambda: 0, tmp_path, step_timeout=step_timeout, is_chief=True)

    def silences() -> int:
        assert made._watchdog is not None
        before = len(found)
        made._watchdog.on_silence(1.0)
        return len(found) - before

    fit(0.001)
    time.sleep(0.2)
    # Another `fit` runs later.
    monkeypatch.setattr(thread_stacks, "runs", lambda *_: True)
    time.sleep(0.2)
    assert silences() == 0
    fit(100.0)
    assert silences() == 1
    monkeypatch.setattr(thread_stacks, "is_debugged", lambda: True)
    assert silences() == 0
    made.end_watch()
