"""A killed job resumes where it stopped and gives the same results.

With Keras 2, `test_faults_machines.py` and `test_faults_lost_task.py` compare the weights.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import (
    PROGRAM,
    Processes,
    by_flags,
    cluster_of,
    directories,
    epochs_logged,
    launch,
    results,
    run_by_hand,
)
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.21"), pytest.mark.timeout(240)]

EPOCHS = 4
# 101 steps per epoch.
FLAGS = [
    *("--shuffle", f"--epochs={EPOCHS}", "--examples=201", "--batch_size=1", "--save_steps=20")
]


def test_an_all_reduce_job_resumes_after_a_kill_with_the_same_weights(tmp_path: Path) -> None:
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"
    job = ["--strategy=multi_worker_mirrored", "--workers=2", PROGRAM]
    ended = launch(uninterrupted, *job, *FLAGS, *directories(uninterrupted), deadline=90)
    assert ended.code == 0, ended.output

    done: list[int] = []

    def kill_in_mid_training(processes: Processes, _: Mapping[str, Path]) -> None:
        # Its files exist before the checkpoint is complete; then this file names it.
        complete = killed / "output" / "checkpoints" / "checkpoint"
        saved = complete.exists() and "ckpt-222" in complete.read_text()
        if saved and not done:
            for process in processes.values():
                os.kill(process.pid, signal.SIGKILL)
            done.append(1)

    with hold_ports(2) as ports:
        cluster = cluster_of(ports, workers=2)
        tasks = by_flags(cluster, [*FLAGS, *directories(killed)])
        first = run_by_hand(killed / "first", tasks, deadline=90, watch=kill_in_mid_training)
    assert [task.code for task in first.values()] == [-signal.SIGKILL] * 2
    assert epochs_logged(killed / "output") == [1, 2]

    ended = launch(killed, *job, *FLAGS, *directories(killed), deadline=90)
    assert ended.code == 0, ended.output
    assert re.search(r"resuming after step \d+ of epoch 3 of 4", ended.output)
    assert epochs_logged(killed / "output") == list(range(1, EPOCHS + 1))

    expected, found = results(uninterrupted), results(killed)
    for name in expected:
        np.testing.assert_array_equal(found[name]["weights"], expected[name]["weights"])
        assert found[name]["steps"] == expected[name]["steps"]
        assert found[name]["losses"][-1] == expected[name]["losses"][-1]
        assert len(found[name]["losses"]) == 2, "the first epochs should not be run again"
