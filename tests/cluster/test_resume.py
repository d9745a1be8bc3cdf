"""A killed job resumes where it stopped and gives the same results."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support.processes import (
    PROGRAM,
    ROOT,
    Processes,
    by_flags,
    cluster_of,
    directories,
    launch,
    results,
    run_by_hand,
)
from tfdist.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15", "2.21", "tf_keras"), pytest.mark.timeout(240)]

EPOCHS = 4
# 101 steps per epoch.
FLAGS = [
    *("--shuffle", f"--epochs={EPOCHS}", "--examples=201", "--batch_size=1", "--save_steps=20")
]


def epochs_logged(output: Path) -> list[int]:
    metrics = output / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return [json.loads(line)["epoch"] for line in lines]


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


@pytest.mark.parametrize(
    "launcher",
    [
        "--strategy=parameter_server --ps=2 --workers=2",
        "--strategy=horovod --workers=2",
        "--strategy=central_storage",
    ],
)
def test_a_failed_job_resumes_and_a_complete_one_does_not_train(
    tmp_path: Path, launcher: str
) -> None:
    command = [*launcher.split(), PROGRAM, *directories(tmp_path)]
    if "parameter_server" in launcher and not keras_is_3():
        command += ["--variable_partitions=2", "--units=40000"]
    failed = launch(tmp_path, *command, "--epochs=4", "--fail_in_epoch=2", deadline=90)
    assert failed.code == 1
    assert "as requested" in failed.output
    assert epochs_logged(tmp_path / "output") == [1, 2]

    resumed = launch(tmp_path, *command, "--epochs=4", deadline=90)
    assert resumed.code == 0, resumed.output
    assert "resuming after epoch 2 of 4" in resumed.output
    assert epochs_logged(tmp_path / "output") == [1, 2, 3, 4]
    before = results(tmp_path)
    updates = 4 * 40 // 4
    replicas = 2 if "horovod" in launcher else 1
    assert {int(task["steps"]) for task in before.values()} == {updates // replicas}

    again = launch(tmp_path, *command, "--epochs=4", deadline=90)
    assert again.code == 0, again.output
    assert "training is complete after 4 epochs" in again.output
    after = results(tmp_path)
    for name, task in after.items():
        assert task["losses"].size == 0, "nothing should be trained again"
        np.testing.assert_array_equal(task["weights"], before[name]["weights"])
        assert task["evaluated_loss"] == pytest.approx(float(before[name]["evaluated_loss"]))


def test_a_second_fit_waits_for_the_checkpoint_of_the_chief(tmp_path: Path) -> None:
    program = str(ROOT / "tests" / "support" / "fits_program.py")
    output = tmp_path / "output"
    command = ["--strategy=multi_worker_mirrored", "--workers=2", program, f"--output_dir={output}"]
    ended = launch(tmp_path, *command, deadline=90)
    assert ended.code == 0, ended.output
    assert "resuming after epoch 2 of 3 and 160 steps" in ended.output
    assert epochs_logged(output) == [1, 2, 3]
