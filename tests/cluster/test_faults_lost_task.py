"""Tasks that are killed, stopped or raise an exception: the others learn of it; the job goes on.

`tfdist run --max_restarts` ends with what an undisturbed job ends with.
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
from tfdist.launch.local import hold_ports

pytestmark = pytest.mark.timeout(180)

EPOCHS = 10
# A busy machine may let a task stand still for more than the five seconds of HASTE.
FLAGS = ["--shuffle", f"--epochs={EPOCHS}", "--examples=41", "--heartbeat_timeout=15"]
HASTE = ["--heartbeat_timeout=5"]

# The options of `tfdist run`, and its tasks in the order in which they are started.
JOBS = {
    "multi_worker_mirrored": (["--workers=2"], ["worker:0", "worker:1"]),
    "horovod": (["--workers=2"], ["worker:0", "worker:1"]),
    "parameter_server": (
        ["--ps=1", "--workers=2", "--chief", "--evaluator"],
        ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"],
    ),
}


def signalling(position: int, number: int) -> Callable[[Processes], None]:
    """Sends a signal to one of the launcher's tasks, by its place among them."""

    def strike(processes: Processes) -> None:
        tasks_of(processes["tfdist"].pid)[position].send_signal(number)

    return strike


def strike(
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
    watch = OnceSaved(path, 3, signalling(tasks.index(task), number))
    return run_by_hand(path, job, deadline=120, watch=watch)["tfdist"]


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_an_all_reduce_job_that_loses_its_leader_ends_as_if_it_had_not(
    tmp_path: Path, strategy: str
) -> None:
    whole = tmp_path / "whole"
    options = [f"--strategy={strategy}", *JOBS[strategy][0]]
    ended = launch(whole, *options, PROGRAM, *FLAGS, *directories(whole), deadline=90)
    assert ended.code == 0, ended.output
    struck = tmp_path / "struck"
    ended = strike(struck, strategy, "worker:0", "--max_restarts=1")
    assert ended.code == 0, ended.output
    assert "worker:0 was killed by signal 9 (Killed), restart 1 of 1 of all" in ended.output
    assert "resuming after epoch" in ended.output
    for name, task in results(whole).items():
        np.testing.assert_array_equal(results(struck)[name]["weights"], task["weights"])


@pytest.mark.parametrize(
    ("task", "restarted"),
    [
        ("chief:0", " of all tasks"),
        ("ps:0", " of all tasks"),
        ("worker:1", " in 1 s"),
        ("evaluator:0", " in 1 s"),
    ],
)
def test_a_parameter_server_job_goes_on_when_a_task_is_lost(
    tmp_path: Path, task: str, restarted: str
) -> None:
    # To save in mid-epoch is to ask for what the steps on a lost worker have returned.
    flags = ["--save_steps=2"] if task == "worker:1" else []
    ended = strike(tmp_path, "parameter_server", task, "--max_restarts=1", training=flags)
    assert ended.code == 0, ended.output
    assert f"{task} was killed by signal 9 (Killed), restart 1 of 1{restarted}" in ended.output
    (found,) = results(tmp_path).values()
    last_epoch = found["counts"][-1]
    if task == "worker:1":
        # An epoch may end without its shard, while it is away.
        last_epoch = last_epoch[0::2]
    np.testing.assert_array_equal(last_epoch, 1)
    evaluated = (tmp_path / "output" / "eval_metrics.jsonl").read_text().splitlines()
    assert f'"epoch": {EPOCHS},' in evaluated[-1]


@pytest.mark.parametrize("strategy", JOBS)
def test_a_task_that_is_stopped_for_a_moment_is_not_lost(tmp_path: Path, strategy: str) -> None:
    options, tasks = JOBS[strategy]
    worker = tasks.index("worker:1")

    def stop(processes: Processes) -> None:
        signalling(worker, signal.SIGSTOP)(processes)
        time.sleep(2)
        signalling(worker, signal.SIGCONT)(processes)

    command = [
        sys.executable,
        "-m",
        "tfdist",
        "run",
        f"--strategy={strategy}",
        *options,
    ]
    job: Tasks = {"tfdist": ([*command, PROGRAM, *FLAGS, *directories(tmp_path)], {})}
    ended = run_by_hand(tmp_path, job, deadline=120, watch=OnceSaved(tmp_path, 3, stop))["tfdist"]
    assert ended.code == 0, ended.output
    assert "lost" not in ended.output
    for task in results(tmp_path).values():
        # Each epoch has all of the data that this task counts, as if nothing had been.
        np.testing.assert_array_equal(task["counts"], [task["counts"][0]] * EPOCHS)


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_nothing_outlives_the_launcher(tmp_path: Path, strategy: str) -> None:
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
    _, alive = psutil.wait_procs(tasks, timeout=10)
    assert not alive


@pytest.mark.parametrize(
    ("strategy", "task", "lost"),
    [
        ("multi_worker_mirrored", "worker:1", "worker:1 was lost"),
        ("horovod", "worker:1", "another rank was lost"),
        ("parameter_server", "worker:1", "worker:1 was lost"),
        ("parameter_server", "chief:0", "chief:0 was lost"),
    ],
)
def test_a_stopped_task_counts_as_lost_after_the_heartbeat(
    tmp_path: Path, strategy: str, task: str, lost: str
) -> None:
    # One that is stopped does nothing with the time that it is given.
    options = ["--grace_period=1"]
    ended = strike(tmp_path, strategy, task, *options, number=signal.SIGSTOP, training=HASTE)
    # Where TensorFlow lets Python do nothing any more, the task that finds out is killed.
    assert ended.code in (1, 128 + signal.SIGKILL), ended.output
    assert re.search(rf"^tfdist: (?!error).* \(.*{lost}", ended.output, re.MULTILINE)
    assert re.search(rf"^tfdist: killing .*{task}.*: told to end", ended.output, re.MULTILINE)


def test_one_exception_ends_the_launched_job_and_is_shown_once(tmp_path: Path) -> None:
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
    assert ended.output.count("failing in epoch 3, as it was asked to\n") == 1
    first_traceback = ended.output.index("Traceback")
    assert ended.output[:first_traceback].endswith("[worker:1] ")
    assert "worker:1 failed with exit code 1 (RuntimeError: failing in epoch 3" in ended.output


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_the_others_end_when_one_has_an_exception(tmp_path: Path, strategy: str) -> None:
    arguments = [f"--strategy={strategy}", *FLAGS, *HASTE, *directories(tmp_path)]
    with hold_ports(2) as ports:
        tasks = by_flags(cluster_of(ports, workers=2), arguments)
        command, environment = tasks["worker:1"]
        tasks["worker:1"] = ([*command, "--fail_in_epoch=3"], environment)
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=90)
    assert [task.code for task in ended.values()] == [1, 1]
    # Six times the heartbeat's timeout: a busy machine takes three.
    assert ended["worker:0"].time - ended["worker:1"].time < 30
    assert "was lost" in ended["worker:0"].output
