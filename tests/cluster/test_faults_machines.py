"""A job on several machines, each of which starts its own task again when it fails.

The machines are those of `tfdist run --job_name=… --task_index=…`, one for each task.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import (
    PROGRAM,
    Ended,
    OnceSaved,
    Processes,
    Tasks,
    cluster_of,
    directories,
    results,
    run_by_hand,
    tasks_of,
)
from tfdist.cluster import Cluster
from tfdist.launch.local import hold_ports

pytestmark = pytest.mark.timeout(180)

TRAINING = ["--shuffle", "--epochs=8", "--examples=41", "--startup_timeout=60"]
TRAINING += ["--heartbeat_timeout=15"]


def machines(cluster: Cluster, strategy: str, path: Path, restart_delay: float) -> Tasks:
    run = [sys.executable, "-m", "tfdist", "run", f"--strategy={strategy}"]
    run += ["--max_restarts=2", f"--restart_delay={restart_delay:g}"]
    script = [PROGRAM, *TRAINING, *directories(path)]
    return {str(task): ([*run, *cluster.flags(task), *script], {}) for task in cluster.tasks()}


def run(
    path: Path, strategy: str, struck: str | None, *, restart_delay: float = 0.2, **tasks: int
) -> dict[str, Ended]:
    with hold_ports(sum(tasks.values())) as ports:
        job = machines(cluster_of(ports, **tasks), strategy, path, restart_delay)

        def kill_task(processes: Processes) -> None:
            assert struck
            (task,) = tasks_of(processes[struck].pid)
            task.kill()

        watch = OnceSaved(path, 3, kill_task) if struck else None
        ended = run_by_hand(path / "logs", job, deadline=150, watch=watch)
    for name, task in ended.items():
        assert task.code == 0, f"{name}: {task.output}"
    return ended


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_the_survivors_of_an_all_reduce_leave_and_all_meet_again(
    tmp_path: Path, strategy: str
) -> None:
    whole, struck = tmp_path / "whole", tmp_path / "struck"
    run(whole, strategy, None, workers=2)
    ended = run(struck, strategy, "worker:1", workers=2)
    assert "worker:1 was killed by signal 9 (Killed), restart 1 of 2" in ended["worker:1"].output
    assert "was lost), restart 1 of 2" in ended["worker:0"].output
    assert "resuming after epoch" in ended["worker:0"].output
    for name, task in results(whole).items():
        np.testing.assert_array_equal(results(struck)[name]["weights"], task["weights"])


@pytest.mark.parametrize("struck", ["chief:0", "ps:0"])
def test_the_servers_tell_a_leader_that_was_lost_from_one_that_has_ended(
    tmp_path: Path, struck: str
) -> None:
    # A chief that is back at once is found by its servers as if it had never been away.
    delay = 8.0 if struck == "chief:0" else 0.2
    ended = run(tmp_path, "parameter_server", struck, restart_delay=delay, chief=1, workers=1, ps=1)
    assert "was killed by signal 9 (Killed), restart 1 of 2" in ended[struck].output
    if struck == "chief:0":
        assert "chief:0 was lost" in ended["ps:0"].output + ended["worker:0"].output
        assert "resuming after epoch" in ended["chief:0"].output
    (found,) = results(tmp_path).values()
    np.testing.assert_array_equal(found["counts"][-1], 1)
