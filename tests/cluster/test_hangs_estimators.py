"""A task of an Estimator's job that hangs or is stopped: the job ends, and names the task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).parents[1] / "support" / "hang_estimator_program.py")


@pytest.mark.parametrize(
    "options", ["--ps=1 --workers=2", "--workers=2 --strategy=multi_worker_mirrored"]
)
def test_a_task_that_hangs_in_a_hook_is_named(tmp_path: Path, options: str) -> None:
    output = f"--output_dir={tmp_path / 'output'}"
    # What a hook does has ten times as long as a step.
    timeout = "--step_timeout=3" if "--ps" in options else "--step_timeout=8"
    ended = launch(tmp_path / "logs", *options.split(), PROGRAM, output, timeout, deadline=180)
    assert ended.code == 1, ended.output
    place = r"worker:1 is in hang_estimator_program.py:\d+ in sleep_in_hook"
    assert re.search(rf"error: no step for \d+ s \(--step_timeout\): {place}", ended.output)
    text = (tmp_path / "output" / "hang_report.txt").read_text()
    assert "in sleep_in_hook\n    time.sleep(1000)\n" in text
    assert "\nworker:0: Python stacks\n" in text


def test_a_stopped_worker_does_not_keep_a_complete_job(tmp_path: Path) -> None:
    job = ["--ps=1", "--workers=2", "--heartbeat_timeout=4", PROGRAM]
    job += ["--stop", "--shard=1", "--steps=600", f"--output_dir={tmp_path / 'output'}"]
    ended = launch(tmp_path / "logs", *job, deadline=150)
    assert ended.code == 0, ended.output
    assert ended.output.count("tfdist: worker:1 was lost: it has not answered for") == 1
    assert "ps:0 exits because worker:0 and all workers have exited" in ended.output
    assert "tfdist: ending worker:1: " in ended.output
