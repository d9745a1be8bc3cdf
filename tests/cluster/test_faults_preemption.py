"""On SIGTERM and SIGUSR1, every task stops at a common step, saves, exits, and later resumes.

The interrupted run gives bitwise the same weights as an uninterrupted one.
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
from tfdist.errors import EXIT_PREEMPTED
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(240)]

FLAGS = ["--shuffle", "--epochs=2", "--examples=201", "--batch_size=1", "--save_steps=20"]

# Makes steps slow, so that the signal arrives before the end of the epoch.
PAUSE = "--rest=0.01"
JOBS = {
    "multi_worker_mirrored": cluster_of(range(1, 3), workers=2),
    "horovod": cluster_of(range(1, 3), workers=2),
    "parameter_server": cluster_of(range(1, 4), chief=1, workers=1, ps=1),
}


def signal_after_two_saves(path: Path, number: int, *names: str) -> OnceSaved:
    """A `watch` that sends a signal to these processes after the second checkpoint."""

    def send(processes: Processes) -> None:
        for name in names:
            os.kill(processes[name].pid, number)

    return OnceSaved(path, 2, send)


def run_and_signal(path: Path, number: int, *job: str) -> Ended:
    """Runs `tfdist run`, and sends it the signal in mid-training."""
    command = [sys.executable, "-m", "tfdist", "run", *job, *directories(path)]
    tasks: Tasks = {"tfdist": (command, {})}
    watch = signal_after_two_saves(path, number, "tfdist")
    return run_by_hand(path, tasks, deadline=60, watch=watch)["tfdist"]


def check_equal(found: Path, expected: Path) -> None:
    for name, task in results(expected).items():
        np.testing.assert_array_equal(results(found)[name]["weights"], task["weights"])
        assert results(found)[name]["steps"] == task["steps"]


def step_saved(output: str) -> tuple[int, int]:
    match = re.search(r"saved after step (\d+) of epoch (\d+)", output)
    assert match, output
    return int(match[1]), int(match[2])


def test_a_signal_to_the_launcher_lets_its_tasks_save(tmp_path: Path) -> None:
    uninterrupted, interrupted = tmp_path / "uninterrupted", tmp_path / "interrupted"
    job = ["--strategy=multi_worker_mirrored", "--workers=2", PROGRAM, *FLAGS]
    job += ["--noknown_size", PAUSE]  # The next test has a known size.
    ended = launch(uninterrupted, *job, *directories(uninterrupted), deadline=90)
    assert ended.code == 0, ended.output

    first = run_and_signal(interrupted, signal.SIGTERM, *job)
    assert first.code == EXIT_PREEMPTED, first.output
    step, epoch = step_saved(first.output)
    assert step, "it should have been interrupted within an epoch"
    assert "Traceback" not in first.output

    second = launch(interrupted, *job, *directories(interrupted), deadline=90)
    assert second.code == 0, second.output
    assert f"resuming after step {step} of epoch {epoch} of 2" in second.output
    check_equal(interrupted, uninterrupted)


def by_hand(strategy: str, path: Path, ports: tuple[int, ...]) -> Tasks:
    old = JOBS[strategy]
    cluster = cluster_of(ports, chief=len(old.chief), workers=len(old.worker), ps=len(old.ps))
    arguments = [f"--strategy={strategy}", *FLAGS, PAUSE, *directories(path)]
    return (by_tf_config if strategy == "horovod" else by_flags)(cluster, arguments)


@pytest.mark.parametrize(
    ("strategy", "number", "names"),
    [
        ("multi_worker_mirrored", signal.SIGUSR1, ("worker:1",)),
        ("horovod", signal.SIGUSR1, ("worker:0", "worker:1")),
        ("parameter_server", signal.SIGTERM, ("chief:0", "worker:0", "ps:0")),
    ],
)
def test_a_signal_to_one_task_stops_all_tasks(
    tmp_path: Path, strategy: str, number: int, names: tuple[str, ...]
) -> None:
    with hold_ports(3) as ports:
        tasks = by_hand(strategy, tmp_path, ports)
        watch = signal_after_two_saves(tmp_path, number, *names)
        ended = run_by_hand(tmp_path / "first", tasks, deadline=60, watch=watch)
    for name, task in ended.items():
        assert task.code == EXIT_PREEMPTED, f"{name}: {task.output}"
    saved = "".join(task.output for task in ended.values())
    step, epoch = step_saved(saved)
    assert step, "it should have been interrupted within an epoch"
    assert saved.count("saved after step") == 1
    with hold_ports(3) as ports:
        tasks = by_hand(strategy, tmp_path, ports)
        again = run_by_hand(tmp_path / "second", tasks, deadline=90)
    for name, task in again.items():
        assert task.code == 0, f"{name}: {task.output}"
    output = "".join(task.output for task in again.values())
    assert f"resuming after step {step} of epoch {epoch} of 2" in output


def test_no_task_exits_before_the_chief_has_saved(tmp_path: Path) -> None:
    program = str(ROOT / "tests" / "support" / "fits_program.py")
    arguments = ["--strategy=multi_worker_mirrored", f"--output_dir={tmp_path / 'output'}"]
    with hold_ports(2) as ports:
        cluster = cluster_of(ports, workers=2)
        tasks: Tasks = {
            str(task): ([sys.executable, program, *cluster.flags(task), *arguments], {})
            for task in cluster.tasks()
        }

        def preempt(processes: Processes) -> None:
            time.sleep(1.0)  # The second epoch takes longer, and begins later on a busy machine.
            os.kill(processes["worker:1"].pid, signal.SIGTERM)

        watch = OnceSaved(tmp_path, 1, preempt)
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=60, watch=watch)
    chief, other = ended["worker:0"], ended["worker:1"]
    assert (chief.code, other.code) == (EXIT_PREEMPTED, EXIT_PREEMPTED), chief.output
    assert step_saved(chief.output)[0], "it should have been interrupted within an epoch"
    *_, saved = re.findall(r"saved at ([\d.]+)", chief.output)
    assert other.time > float(saved)


def test_estimators_save_and_resume(tmp_path: Path) -> None:
    options = "--strategy=parameter_server --ps=1 --workers=2 --chief --evaluator"
    program = str(ROOT / "tests" / "support" / "estimator_program.py")
    command = [*options.split(), program, "--max_steps=150", "--step_seconds=0.02", "--sync"]
    first = run_and_signal(tmp_path, signal.SIGTERM, *command)
    assert first.code == EXIT_PREEMPTED, first.output
    match = re.search(r"saved at step (\d+), exiting", first.output)
    assert match, first.output
    assert 0 < int(match[1]) < 150
    assert "Traceback" not in first.output

    second = launch(tmp_path, *command, *directories(tmp_path), deadline=90)
    assert second.code == 0, second.output
    assert f"resuming from step {match[1]}" in second.output
