"""A task of an Estimator's job that hangs or is stopped: the job ends, and names the task."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes import Processes, launch, run_by_hand, states_of

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
    stopped: list[int] = []

    def stop(_: Processes, __: Mapping[str, Path]) -> None:
        for state in states_of(tmp_path / "output"):
            if state.task == "worker:1" and state.steps and not stopped:
                stopped.append(state.pid)
                os.kill(state.pid, signal.SIGSTOP)

    job = ["--ps=1", "--workers=2", "--heartbeat_timeout=4", PROGRAM]
    job += ["--shard=2", "--steps=600", f"--output_dir={tmp_path / 'output'}"]
    command = [sys.executable, "-m", "tfdist", "run", *job]
    ended = run_by_hand(tmp_path / "logs", {"tfdist": (command, {})}, deadline=150, watch=stop)
    output = ended["tfdist"].output
    assert stopped and ended["tfdist"].code == 0, output
    assert output.count("tfdist: worker:1 was lost: it has not answered for") == 1
    assert "ps:0 exits because worker:0 and all workers have exited" in output
    assert "tfdist: ending worker:1: " in output
