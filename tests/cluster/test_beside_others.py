"""Two jobs in one output directory: the second is refused, until the first has ended."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes import (
    PROGRAM,
    Ended,
    Processes,
    Tasks,
    checkpoints,
    directories,
    launch,
    run_by_hand,
)
from tfdist.storage import files as checkpoint_files

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]


def one_process(path: Path, *flags: str) -> Tasks:
    return {
        "job": ([sys.executable, PROGRAM, "--strategy=one_device", *directories(path), *flags], {})
    }


def epochs(path: Path) -> list[int]:
    """The epochs in the metrics log."""
    lines = (path / "output" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch"] for line in lines]


def test_a_second_job_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    refused: list[Ended] = []
    first_pid: list[int] = []

    def start_another_and_kill_the_first(processes: Processes, logs: Mapping[str, Path]) -> None:
        if refused or not checkpoints(tmp_path):
            return
        job = ["--strategy=multi_worker_mirrored", "--workers=2", PROGRAM]
        output = f"--output_dir={tmp_path / 'output'}"
        result = f"--result_dir={tmp_path / 'refused'}"
        refused.append(launch(tmp_path / "second", *job, output, result, deadline=60))
        first_pid.append(processes["job"].pid)
        assert processes["job"].poll() is None, "the first job should not notice anything"
        processes["job"].kill()

    first = run_by_hand(
        tmp_path / "first",
        one_process(tmp_path, "--epochs=1000", "--rest=0.05"),
        deadline=90,
        watch=start_another_and_kill_the_first,
    )["job"]

    assert first.code == -9, first.output
    (second,) = refused
    assert second.code == 1, second.output
    (error,) = re.findall(r"\[worker:0\] tfdist: (error: .*)", second.output)
    assert error.startswith(
        f"error: {tmp_path / 'output'} is in use by another job (process {first_pid[0]} on "
    )
    assert error.endswith("or end it, or choose another directory.")
    assert second.output.count("is in use by another job") == 1
    assert "tfdist: worker:0 failed with exit code 1, ending worker:1\n" in second.output
    assert os.listdir(tmp_path / "refused") == []
    finished = len(epochs(tmp_path))
    assert epochs(tmp_path) == list(range(1, finished + 1))
    saved = checkpoint_files.saved(tmp_path / "output" / "checkpoints")
    # A kill before the oldest one is deleted leaves one more.
    assert [checkpoint_files.damage(path) for path in saved] in ([None] * 5, [None] * 6)

    more = one_process(tmp_path, f"--epochs={finished + 2}")
    third = run_by_hand(tmp_path / "third", more, deadline=60)["job"]
    assert third.code == 0, third.output
    assert "resuming after epoch" in third.output
    assert epochs(tmp_path) == list(range(1, finished + 3))
