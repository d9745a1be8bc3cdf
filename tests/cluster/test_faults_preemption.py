"""SIGTERM and SIGUSR1: every task saves at one common step, leaves, and later goes on from there.

The run that was cut off ends with the weights of one that was not, bit for bit.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import (
    PROGRAM,
    ROOT,
    Ended,
    OnceSaved,
    Processes,
    Tasks,
    by_flags,
    by_tf_config,
    cluster_of,
    directories,
    launch,
    results,
    run_by_hand,
)
from tfdist.cluster import Cluster
from tfdist.coordination.preemption import EXIT_PREEMPTED
from tfdist.launch.local import hold_ports

pytestmark = pytest.mark.timeout(240)

FLAGS = ["--shuffle", "--epochs=2", "--examples=201", "--batch_size=1", "--save_steps=20"]

JOBS = {
    "one_device": Cluster(),
    "multi_worker_mirrored": cluster_of(range(1, 3), workers=2),
    "horovod": cluster_of(range(1, 3), workers=2),
    "parameter_server": cluster_of(range(1, 4), chief=1, workers=1, ps=1),
}


def options(strategy: str) -> list[str]:
    cluster = JOBS[strategy]
    tasks = [f"--workers={len(cluster.worker)}"] if cluster else []
    if cluster.ps:
        tasks += ["--ps=1", "--chief"]
    return [f"--strategy={strategy}", *tasks]


def resting(strategy: str) -> list[str]:
    """Else the epoch may have ended when the signal comes."""
    return [] if strategy == "parameter_server" else ["--rest=0.01"]


def signalled(path: Path, number: int, *names: str) -> OnceSaved:
    """Sends a signal to these processes when the second checkpoint is there."""

    def strike(processes: Processes) -> None:
        for name in names:
            os.kill(processes[name].pid, number)

    return OnceSaved(path, 2, strike)


def struck(path: Path, number: int, *job: str) -> Ended:
    """How `tfdist run` ends that is sent the signal in mid-training."""
    command = [sys.executable, "-m", "tfdist", "run", *job, *directories(path)]
    tasks: Tasks = {"tfdist": (command, {})}
    watch = signalled(path, number, "tfdist")
    return run_by_hand(path, tasks, deadline=60, watch=watch)["tfdist"]


def check_equal(found: Path, expected: Path) -> None:
    for name, task in results(expected).items():
        np.testing.assert_array_equal(results(found)[name]["weights"], task["weights"])
        assert results(found)[name]["steps"] == task["steps"]


def step_saved(output: str) -> tuple[int, int]:
    match = re.search(r"saved after step (\d+) of epoch (\d+)", output)
    assert match, output
    return int(match[1]), int(match[2])


@pytest.mark.parametrize("strategy", JOBS)
def test_a_launcher_that_is_told_to_end_lets_its_tasks_save(tmp_path: Path, strategy: str) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    job = [*options(strategy), PROGRAM, *FLAGS]
    if strategy in ("multi_worker_mirrored", "horovod"):
        job.append("--noknown_size")  # For a known one see below.
    job += resting(strategy)
    ended = launch(whole, *job, *directories(whole), deadline=90)
    assert ended.code == 0, ended.output

    first = struck(cut, signal.SIGTERM, *job)
    assert first.code == EXIT_PREEMPTED, first.output
    step, epoch = step_saved(first.output)
    assert step, "it should have been cut off within an epoch"
    assert "Traceback" not in first.output

    second = launch(cut, *job, *directories(cut), deadline=90)
    assert second.code == 0, second.output
    assert f"resuming after step {step} of epoch {epoch} of 2" in second.output
    check_equal(cut, whole)


def by_hand(strategy: str, path: Path, ports: tuple[int, ...]) -> Tasks:
    old = JOBS[strategy]
    cluster = cluster_of(ports, chief=len(old.chief), workers=len(old.worker), ps=len(old.ps))
    arguments = [f"--strategy={strategy}", *FLAGS, *resting(strategy), *directories(path)]
    return (by_tf_config if strategy == "horovod" else by_flags)(cluster, arguments)


@pytest.mark.parametrize(
    ("strategy", "number", "names"),
    [
        ("multi_worker_mirrored", signal.SIGUSR1, ("worker:1",)),
        ("horovod", signal.SIGUSR1, ("worker:0", "worker:1")),
        ("parameter_server", signal.SIGTERM, ("chief:0", "worker:0", "ps:0")),
    ],
)
def test_one_signalled_task_takes_the_others_along(
    tmp_path: Path, strategy: str, number: int, names: tuple[str, ...]
) -> None:
    with hold_ports(3) as ports:
        tasks = by_hand(strategy, tmp_path, ports)
        strike = signalled(tmp_path, number, *names)
        ended = run_by_hand(tmp_path / "first", tasks, deadline=60, watch=strike)
    for name, task in ended.items():
        assert task.code == EXIT_PREEMPTED, f"{name}: {task.output}"
    saved = "".join(task.output for task in ended.values())
    step, epoch = step_saved(saved)
    assert step, "it should have been cut off within an epoch"
    assert saved.count("saved after step") == 1
    with hold_ports(3) as ports:
        tasks = by_hand(strategy, tmp_path, ports)
        again = run_by_hand(tmp_path / "second", tasks, deadline=90)
    for name, task in again.items():
        assert task.code == 0, f"{name}: {task.output}"
    output = "".join(task.output for task in again.values())
    assert f"resuming after step {step} of epoch {epoch} of 2" in output


def test_nobody_leaves_before_the_chief_has_saved(tmp_path: Path) -> None:
    program = str(ROOT / "tests" / "support" / "fits_program.py")
    arguments = ["--strategy=multi_worker_mirrored", f"--output_dir={tmp_path / 'output'}"]
    with hold_ports(2) as ports:
        cluster = cluster_of(ports, workers=2)
        tasks: Tasks = {
            str(task): ([sys.executable, program, *cluster.flags(task), *arguments], {})
            for task in cluster.tasks()
        }

        def strike(processes: Processes) -> None:
            time.sleep(0.4)  # The second epoch takes four times as long.
            os.kill(processes["worker:1"].pid, signal.SIGTERM)

        watch = OnceSaved(tmp_path, 1, strike)
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=60, watch=watch)
    chief, other = ended["worker:0"], ended["worker:1"]
    assert (chief.code, other.code) == (EXIT_PREEMPTED, EXIT_PREEMPTED), chief.output
    assert step_saved(chief.output)[0], "it should have been cut off within an epoch"
    *_, saved = re.findall(r"saved at ([\d.]+)", chief.output)
    assert other.time > float(saved)


@pytest.mark.parametrize(
    "job",
    [
        "--strategy=multi_worker_mirrored --workers=2",
        "--strategy=horovod --workers=2",
        "--strategy=parameter_server --ps=1 --workers=2 --chief --evaluator SYNC",
    ],
)
def test_estimators_save_and_go_on_too(tmp_path: Path, job: str) -> None:
    options = job.removesuffix(" SYNC")
    program = str(ROOT / "tests" / "support" / "estimator_program.py")
    command = [*options.split(), program, "--max_steps=150", "--step_seconds=0.02"]
    if " SYNC" in job:
        command.append("--sync")
    first = struck(tmp_path, signal.SIGTERM, *command)
    assert first.code == EXIT_PREEMPTED, first.output
    match = re.search(r"saved at step (\d+), exiting", first.output)
    assert match, first.output
    assert 0 < int(match[1]) < 150
    assert "Traceback" not in first.output

    second = launch(tmp_path, *command, *directories(tmp_path), deadline=90)
    assert second.code == 0, second.output
    assert f"resuming from step {match[1]}" in second.output
