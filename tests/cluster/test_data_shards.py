"""Workers of asynchronous parameter servers that take the shards of the data one after another."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import ROOT, Processes, launch, run_by_hand
from tfdist.errors import EXIT_PREEMPTED

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(150)]

TRAINING = str(ROOT / "scripts" / "benchmarks" / "shards_training.py")
EXAMPLES, EPOCHS, SHARDS = 2_000, 3, 6
#: Each shard has 334 or 333 examples, in batches of 50.
STEPS = 7 * SHARDS


def job(path: Path, workers: int, *flags: str) -> list[str]:
    """The arguments of `tfdist run` for a job that writes to a directory."""
    return [
        *["--strategy=parameter_server", "--ps=2", f"--workers={workers}", "--chief", TRAINING],
        *[f"--data_shards={SHARDS}", f"--examples={EXAMPLES}", f"--epochs={EPOCHS}", *flags],
        *[f"--output_dir={path / 'output'}", f"--result={path / 'counts.npz'}"],
    ]


def test_each_gradient_is_applied_once(tmp_path: Path) -> None:
    """Also with SGD of Keras 2, whose workers share a momentum that they do not use."""
    ended = launch(tmp_path, *job(tmp_path, 2, "--work=0"), deadline=120)
    assert ended.code == 0, ended.output
    counts = np.load(tmp_path / "counts.npz")["counts"]
    assert counts.shape == (EPOCHS, EXAMPLES)
    np.testing.assert_array_equal(counts, 1)
    lines = (tmp_path / "output" / "metrics.jsonl").read_text().splitlines()
    assert [sum(json.loads(line)["steps_by_worker"].values()) for line in lines] == [STEPS] * EPOCHS


def test_a_job_resumes_within_an_epoch_with_another_number_of_workers(tmp_path: Path) -> None:
    sent: list[int] = []

    def interrupt(processes: Processes, _: Mapping[str, Path]) -> None:
        log = tmp_path / "output" / "metrics.jsonl"
        # Within the second epoch, which takes some seconds.
        if not sent and log.exists() and time.time() > log.stat().st_mtime + 0.5:
            sent.append(processes["tfdist"].pid)
            os.kill(sent[0], signal.SIGTERM)

    command = [sys.executable, "-m", "tfdist", "run", *job(tmp_path, 2, "--work=200")]
    first = run_by_hand(tmp_path, {"tfdist": (command, {})}, deadline=100, watch=interrupt)
    assert first["tfdist"].code == EXIT_PREEMPTED, first["tfdist"].output
    resumed = launch(tmp_path, *job(tmp_path, 3, "--work=0"), deadline=100)
    assert resumed.code == 0, resumed.output
    found = re.search(r"resuming after step (\d+) of epoch 2 of 3", resumed.output)
    assert found and 0 < int(found[1]) < STEPS, resumed.output
    counts = np.load(tmp_path / "counts.npz")["counts"]
    np.testing.assert_array_equal(counts.sum(axis=0), EPOCHS)
