"""Ranks leave in mid-epoch and another number goes on: each example is still used once."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import (
    PROGRAM,
    OnceSaved,
    Processes,
    Tasks,
    launch,
    results,
    run_by_hand,
)
from tfdist.coordination.preemption import EXIT_PREEMPTED

pytestmark = pytest.mark.timeout(300)

EXAMPLES = 601
FLAGS = [
    "--shuffle",
    "--noknown_size",
    f"--examples={EXAMPLES}",
    "--batch_size=1",
    "--save_steps=50",
]


def job(path: Path, ranks: int, run: str) -> list[str]:
    return [
        "--strategy=horovod",
        f"--workers={ranks}",
        PROGRAM,
        *FLAGS,
        f"--output_dir={path / 'output'}",
        f"--result_dir={path / run / 'result'}",
    ]


def cut(path: Path, ranks: int, run: str) -> tuple[str, int]:
    """The output of a job that is told to end in mid-epoch, and the step that it says."""
    command = [sys.executable, "-m", "tfdist", "run", *job(path, ranks, run)]
    (path / run).mkdir()
    tasks: Tasks = {"tfdist": (command, {})}

    def end(processes: Processes) -> None:
        os.kill(processes["tfdist"].pid, signal.SIGTERM)

    watch = OnceSaved(path, 1, end)
    ended = run_by_hand(path / run, tasks, deadline=90, watch=watch)["tfdist"]
    assert ended.code == EXIT_PREEMPTED, ended.output
    match = re.search(r"saved after step (\d+) of epoch 1,", ended.output)
    assert match, ended.output
    return ended.output, int(match[1])


def counts(path: Path, run: str, epoch: int) -> np.ndarray:
    """How often the ranks of a run used each example, in an epoch of theirs, from 0."""
    return np.sum([task["counts"][epoch] for task in results(path / run).values()], axis=0)


def test_an_epoch_that_three_numbers_of_ranks_share_uses_each_example_once(tmp_path: Path) -> None:
    _, step = cut(tmp_path, 2, "two")
    used = 2 * step

    # For one rank a step is an example, so that Keras's number of it is that of examples.
    output, step = cut(tmp_path, 1, "one")
    assert f"going on after step {used} of epoch 1 of 2, dealt out anew to 1 replica" in output
    assert step > used
    left = EXAMPLES - step

    (tmp_path / "three").mkdir()
    ended = launch(tmp_path, *job(tmp_path, 3, "three"), deadline=120)
    assert ended.code == 0, ended.output
    assert "epoch 1 of 2, dealt out anew to 3 replicas" in ended.output

    first = np.sum([counts(tmp_path, run, 0) for run in ("two", "one", "three")], axis=0)
    assert first.min() == 1, f"{np.flatnonzero(first == 0)} were not used"
    # A rank that lacks a batch repeats one example.
    assert first.sum() == EXAMPLES + -left % 3
    second = counts(tmp_path, "three", 1)
    assert second.min() == 1
    assert second.sum() == EXAMPLES + -EXAMPLES % 3
    steps = {int(task["steps"]) for task in results(tmp_path / "three").values()}
    assert steps == {used // 2 + (step - used) + -(-left // 3) + -(-EXAMPLES // 3)}
