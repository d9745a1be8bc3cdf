"""The end of a job in five lines."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tfdist.coordination.liveness.activity import SAVING, TRAINING, State
from tfdist.tools.watch.summary import Summary
from tfdist.tools.watch.tasks import Row

pytestmark = pytest.mark.stacks("newest")


def row(output: Path, doing: str = TRAINING) -> Row:
    state = State("worker:0", doing=doing, steps=40, resumed=60, output=str(output), loss=0.5)
    return Row("worker:0", doing, state, 320.0, 99.0, 10**9, 1)


def test_a_job_that_says_nothing_of_a_training_has_no_summary(tmp_path: Path) -> None:
    summary = Summary(started=100.0)
    assert summary.lines(0, now=110.0) == []
    summary.saw([Row("worker:0", "running", None, None, 0.0, 0, 1)], 1.0)
    assert summary.lines(0, now=110.0) == []


def test_the_lines_tell_of_result_speed_time_files_and_failures(tmp_path: Path) -> None:
    summary = Summary(started=100.0)
    for doing in (TRAINING, TRAINING, TRAINING, SAVING):
        summary.saw([row(tmp_path, doing)], 2.0)
    for number in range(5):
        summary.failed(f"failure {number}")
    assert summary.lines(75, now=110.0) == [
        "result    preempted and saved; start the job again to resume",
        "speed     320 examples/s; step 100, loss 0.5",
        "time      10 s, 60% of it in training steps",
        "saved     no checkpoint",
        "failures  failure 2; failure 3; failure 4 (2 earlier)",
    ]
    assert summary.lines(1, now=110.0)[0] == "result    failed with code 1"


def test_the_speed_of_an_estimator_is_in_steps(tmp_path: Path) -> None:
    record = {"step": 300, "time": 109.0, "loss": 0.25, "steps_per_second": 24.6}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    summary = Summary(started=100.0)
    state = State("chief:0", doing=TRAINING, steps=290, goal=300, output=str(tmp_path))
    summary.saw([Row("chief:0", TRAINING, state, None, 99.0, 10**9, 1)], 1.0)
    assert summary.lines(0, now=110.0)[1] == "speed     25 steps/s; step 300, loss 0.25"


@pytest.mark.parametrize(
    ("loss", "expected"), [(0.25, "speed     99 examples/s; step 120, loss 0.25"), (None, None)]
)
def test_the_metrics_log_is_more_exact_than_the_last_look(
    tmp_path: Path, loss: float | None, expected: str | None
) -> None:
    earlier = {"step": 400, "time": 50.0, "loss": 3.0, "examples_per_second": 7.0}
    record = {"step": 120, "time": 109.0, "loss": loss, "examples_per_second": 99.0}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(earlier)}\n{json.dumps(record)}\n")
    summary = Summary(started=100.0)
    summary.saw([row(tmp_path)], 1.0)
    assert summary.lines(0, now=110.0)[1] == (expected or "speed     99 examples/s; step 120")
    late = Summary(started=120.0)
    late.saw([row(tmp_path)], 1.0)
    assert "step 100, loss 0.5" in late.lines(0, now=130.0)[1], "the log is of an earlier job"


def test_the_files_are_the_newest_checkpoint_and_the_model_of_this_job(tmp_path: Path) -> None:
    for name in ("checkpoints/ckpt-9", "checkpoints/ckpt-10", "checkpoints/ckpt-x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.index").touch()
    summary = Summary(started=100.0)
    summary.saw([row(tmp_path)], 1.0)
    assert summary.lines(0, now=110.0)[3] == f"saved     checkpoint {tmp_path}/checkpoints/ckpt-10"
    (tmp_path / "model.ckpt-20.index").touch()  # Of an Estimator.
    saved = f"saved     checkpoint {tmp_path}/model.ckpt-20"
    assert summary.lines(0, now=110.0)[3] == saved
    model = tmp_path / "saved_model"
    model.mkdir()
    for exported, shown in ((99.0, saved), (105.0, f"{saved}, model {model}")):
        os.utime(model, (exported, exported))
        assert summary.lines(75, now=110.0)[3] == shown
