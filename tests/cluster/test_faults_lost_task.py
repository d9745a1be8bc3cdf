"""Tasks that are killed, suspended or raise an exception: the others detect it.

With `tfdist run --max_restarts`, the job restarts and gives the same results.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.support.processes import (
    PROGRAM,
    Ended,
    OnceSaved,
    Processes,
    Tasks,
    by_flags,
    cluster_of,
    directories,
    launch,
    results,
    run_by_hand,
    tasks_of,
)
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(180)]

EPOCHS = 10
# On a busy machine a task may not run for more than the five seconds of SHORT_TIMEOUT.
FLAGS = ["--shuffle", f"--epochs={EPOCHS}", "--examples=41", "--heartbeat_timeout=15"]
SHORT_TIMEOUT = ["--heartbeat_timeout=5"]

# The options of `tfdist run`, and its tasks in the order of their start.
JOBS = {
    "multi_worker_mirrored": (["--workers=2"], ["worker:0", "worker:1"]),
    "horovod": (["--workers=2"], ["worker:0", "worker:1"]),
    "parameter_server": (
        ["--ps=1", "--workers=2", "--chief", "--evaluator"],
        ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"],
    ),
}


def sends_signal(position: int, number: int) -> Callable[[Processes], None]:
    """A function that sends a signal to one of the launcher's tasks, given its position."""

    def send(processes: Processes) -> None:
        tasks_of(processes["tfdist"].pid)[position].send_signal(number)

    return send


def run_and_signal(
    path: Path,
    strategy: str,
    task: str,
    *flags: str,
    number: int = signal.SIGKILL,
    training: Sequence[str] = (),
) -> Ended:
    options, tasks = JOBS[strategy]
    command = [
        sys.executable,
        "-m",
        "tfdist",
        "run",
        f"--strategy={strategy}",
        *options,
    ]
    command += [*flags, PROGRAM, *FLAGS, *training, *directories(path)]
    job: Tasks = {"tfdist": (command, {})}
    watch = OnceSaved(path, 3, sends_signal(tasks.index(task), number))
    return run_by_hand(path, job, deadline=120, watch=watch)["tfdist"]


def run_and_suspend(path: Path, strategy: str) -> None:
    """Runs a job and suspends a worker for a moment: the worker is not lost."""
    options, tasks = JOBS[strategy]
    worker = tasks.index("worker:1")

    def stop(processes: Processes) -> None:
        sends_signal(worker, signal.SIGSTOP)(processes)
        time.sleep(2)
        sends_signal(worker, signal.SIGCONT)(processes)

    command = [sys.executable, "-m", "tfdist", "run", f"--strategy={strategy}", *options]
    job: Tasks = {"tfdist": ([*command, PROGRAM, *FLAGS, *directories(path)], {})}
    ended = run_by_hand(path, job, deadline=120, watch=OnceSaved(path, 3, stop))["tfdist"]
    assert ended.code == 0, ended.output
    assert "lost" not in ended.output
    for task in results(path).values():
        # Every epoch has all examples that this task counts.
        np.testing.assert_array_equal(task["counts"], [task["counts"][0]] * EPOCHS)


def test_an_all_reduce_job_that_loses_its_chief_gives_the_same_weights(tmp_path: Path) -> None:
    """The same as a job whose other worker is suspended for a moment, and not lost.

    tests/cluster/test_faults_soak.py has the same for horovod.
    """
    strategy = "multi_worker_mirrored"
    suspended = tmp_path / "suspended"
    run_and_suspend(suspended, strategy)
    restarted_job = tmp_path / "restarted_job"
    ended = run_and_signal(restarted_job, strategy, "worker:0", "--max_restarts=1")
    assert ended.code == 0, ended.output
    assert "worker:0 was killed by signal 9 (Killed), restart 1 of 1 of all" in ended.output
    assert "resuming after epoch" in ended.output
    for name, task in results(suspended).items():
        np.testing.assert_array_equal(results(restarted_job)[name]["weights"], task["weights"])


@pytest.mark.parametrize(
    ("task", "restarted"),
    [
        ("chief:0", " of all tasks"),
        ("ps:0", " of all tasks"),
        ("worker:1", " now"),
    ],
)
def test_a_parameter_server_job_continues_when_a_task_is_lost(
    tmp_path: Path, task: str, restarted: str
) -> None:
    # A save in mid-epoch needs the results of the steps on the lost worker.
    flags = ["--save_steps=2"] if task == "worker:1" else []
    ended = run_and_signal(tmp_path, "parameter_server", task, "--max_restarts=1", training=flags)
    assert ended.code == 0, ended.output
    assert f"{task} was killed by signal 9 (Killed), restart 1 of 1{restarted}" in ended.output
    (found,) = results(tmp_path).values()
    last_epoch = found["counts"][-1]
    if task == "worker:1":
        # While the worker is lost, an epoch may end without its shard.
        last_epoch = last_epoch[0::2]
    np.testing.assert_array_equal(last_epoch, 1)
    evaluated = (tmp_path / "output" / "eval_metrics.jsonl").read_text().splitlines()
    assert f'"epoch": {EPOCHS},' in evaluated[-1]


def test_a_task_that_is_suspended_for_a_moment_is_not_lost(tmp_path: Path) -> None:
    run_and_suspend(tmp_path, "parameter_server")  # The test of the chief has the other strategies.


def test_no_task_outlives_the_launcher(tmp_path: Path) -> None:
    strategy = "parameter_server"
    tasks: list[psutil.Process] = []

    def kill(processes: Processes) -> None:
        tasks.extend(tasks_of(processes["tfdist"].pid))
        processes["tfdist"].kill()

    command = [sys.executable, "-m", "tfdist", "run", f"--strategy={strategy}"]
    command += [*JOBS[strategy][0], PROGRAM, *FLAGS, *directories(tmp_path)]
    job: Tasks = {"tfdist": (command, {})}
    ended = run_by_hand(tmp_path, job, deadline=90, watch=OnceSaved(tmp_path, 3, kill))["tfdist"]
    assert ended.code == -signal.SIGKILL
    assert len(tasks) == len(JOBS[strategy][1])
    _, alive = psutil.wait_procs(tasks, timeout=30)
    assert not alive


@pytest.mark.parametrize(
    ("strategy", "task", "lost"),
    [
        ("multi_worker_mirrored", "worker:1", "worker:1 was lost"),
        ("horovod", "worker:1", "another rank was lost"),
        ("parameter_server", "chief:0", "chief:0 was lost"),
    ],
)
def test_a_suspended_task_is_lost_after_the_heartbeat_timeout(
    tmp_path: Path, strategy: str, task: str, lost: str
) -> None:
    # A suspended task cannot use the grace period.
    options = ["--grace_period=1"]
    ended = run_and_signal(
        tmp_path, strategy, task, *options, number=signal.SIGSTOP, training=SHORT_TIMEOUT
    )
    # If TensorFlow blocks Python, the task that detects the loss is killed.
    assert ended.code in (1, 128 + signal.SIGKILL), ended.output
    assert re.search(rf"^tfdist: (?!error).* \(.*{lost}", ended.output, re.MULTILINE)
    assert re.search(rf"^tfdist: killing .*{task}.*: still running", ended.output, re.MULTILINE)


def test_an_exception_stops_the_launched_job_and_is_printed_once(tmp_path: Path) -> None:
    fails = ["--fail_in_epoch=3", "--fail_task=worker:1"]
    ended = launch(
        tmp_path,
        "--strategy=multi_worker_mirrored",
        "--workers=2",
        PROGRAM,
        *FLAGS,
        *fails,
        *directories(tmp_path),
        deadline=60,
    )
    assert ended.code == 1
    assert ended.output.count("failing in epoch 3, as requested\n") == 1
    first_traceback = ended.output.index("Traceback")
    assert ended.output[:first_traceback].endswith("[worker:1] ")
    assert "worker:1 failed with exit code 1 (RuntimeError: failing in epoch 3" in ended.output


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_the_other_tasks_exit_when_one_raises_an_exception(tmp_path: Path, strategy: str) -> None:
    arguments = [f"--strategy={strategy}", *FLAGS, *SHORT_TIMEOUT, *directories(tmp_path)]
    with hold_ports(2) as ports:
        tasks = by_flags(cluster_of(ports, workers=2), arguments)
        command, environment = tasks["worker:1"]
        tasks["worker:1"] = ([*command, "--fail_in_epoch=3"], environment)
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=90)
    assert [task.code for task in ended.values()] == [1, 1]
    # Twelve heartbeat timeouts: a busy machine takes three.
    assert ended["worker:0"].time - ended["worker:1"].time < 60
    assert "was lost (" in ended["worker:0"].output
    assert "Traceback" not in ended["worker:0"].output
