"""`parameter_server --sync`: a lost worker does not change the result, and backup workers go on."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import (
    PROGRAM,
    Processes,
    Tasks,
    by_flags,
    checkpoints,
    cluster_of,
    directories,
    launch,
    results,
    run_by_hand,
    tasks_of,
)
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(240)]

EPOCHS = 6
# 11 updates per epoch.
FLAGS = ["--sync", "--shuffle", "--batch_norm", "--examples=81", f"--epochs={EPOCHS}"]
FLAGS += ["--save_steps=3"]
# The order in which `tfdist run` starts the tasks.
JOB = ["--strategy=parameter_server", "--ps=1", "--workers=2", "--chief"]
TASKS = ["chief:0", "worker:0", "worker:1", "ps:0"]


def newest(path: Path) -> int:
    """The number of updates in the newest checkpoint; 0 without one."""
    return max((int(name[5:-6]) for name in checkpoints(path)), default=0)


def test_restarts_of_a_worker_and_of_the_chief_do_not_change_the_result(tmp_path: Path) -> None:
    undisturbed = tmp_path / "undisturbed"
    ended = launch(undisturbed, *JOB, PROGRAM, *FLAGS, *directories(undisturbed), deadline=90)
    assert ended.code == 0, ended.output

    disturbed = tmp_path / "disturbed"

    # The update after which to kill a task: in the second and in the fourth epoch.
    kills = [(15, "worker:1"), (38, "chief:0")]

    def kill(processes: Processes, _: Mapping[str, Path]) -> None:
        if kills and newest(disturbed) >= kills[0][0]:
            place = TASKS.index(kills.pop(0)[1])
            tasks_of(processes["tfdist"].pid)[place].send_signal(signal.SIGKILL)

    command = [sys.executable, "-m", "tfdist", "run", "--max_restarts=2", *JOB, PROGRAM]
    # A busy machine needs time to see a checkpoint before the training ends.
    arguments = [*FLAGS, *directories(disturbed), "--rest=0.3"]
    job: Tasks = {"tfdist": ([*command, *arguments], {})}
    ended = run_by_hand(disturbed, job, deadline=150, watch=kill)["tfdist"]
    assert ended.code == 0, ended.output
    assert "worker:1 was killed by signal 9 (Killed), restart 1 of 2 now" in ended.output
    assert "chief:0 was killed by signal 9 (Killed), restart 2 of 2 of all tasks" in ended.output
    assert re.search(r"resuming after (step \d+ of )?epoch", ended.output)

    (expected,), (found,) = results(undisturbed).values(), results(disturbed).values()
    assert found["steps"] == expected["steps"]
    np.testing.assert_array_equal(found["weights"], expected["weights"])


def test_without_backups_a_lost_worker_ends_the_job_and_with_backups_it_does_not(
    tmp_path: Path,
) -> None:
    for replicas, code in ((2, 1), (1, 0)):
        path = tmp_path / str(replicas)
        killed: list[int] = []

        def kill_worker_1(
            processes: Processes,
            _: Mapping[str, Path],
            path: Path = path,
            killed: list[int] = killed,
        ) -> None:
            if newest(path) >= 9 and not killed:
                os.kill(processes["worker:1"].pid, signal.SIGKILL)
                killed.append(1)

        with hold_ports(4) as ports:
            cluster = cluster_of(ports, chief=1, workers=2, ps=1)
            arguments = [*FLAGS, *directories(path), f"--replicas_to_aggregate={replicas}"]
            tasks = by_flags(cluster, [*arguments, "--startup_timeout=20"])
            ended = run_by_hand(path / "logs", tasks, deadline=100, watch=kill_worker_1)
        chief = ended["chief:0"]
        assert chief.code == code, chief.output
        assert ended["ps:0"].code == 0
        if code:
            assert "worker:1 did not return within 20 s" in chief.output
        else:
            (found,) = results(path).values()
            # The shard of worker 0 has 41 examples.
            assert found["steps"] == EPOCHS * 11
            assert re.search(r"\d+ gradients of \d+ steps came late and were dropped", chief.output)
