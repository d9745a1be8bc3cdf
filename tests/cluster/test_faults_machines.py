"""A job on several machines, each of which restarts its own task when the task fails.

Each machine is a `tfdist run --job_name=… --task_index=…` with one task.
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
from tfdist.process.deadline import wait_until
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(180)]

TRAINING = ["--shuffle", "--epochs=8", "--examples=41", "--startup_timeout=60"]
TRAINING += ["--heartbeat_timeout=15"]


def machines(cluster: Cluster, strategy: str, path: Path, restart_delay: float) -> Tasks:
    run = [sys.executable, "-m", "tfdist", "run", f"--strategy={strategy}"]
    run += ["--max_restarts=2", f"--restart_delay={restart_delay:g}"]
    script = [PROGRAM, *TRAINING, *directories(path)]
    return {str(task): ([*run, *cluster.flags(task), *script], {}) for task in cluster.tasks()}


def run(
    path: Path,
    strategy: str,
    killed: str | None,
    *,
    times: int = 1,
    restart_delay: float = 0.2,
    **tasks: int,
) -> dict[str, Ended]:
    with hold_ports(sum(tasks.values())) as ports:
        job = machines(cluster_of(ports, **tasks), strategy, path, restart_delay)

        def kill_task(processes: Processes) -> None:
            assert killed
            for _ in range(times):
                assert wait_until(lambda: bool(tasks_of(processes[killed].pid)), 60, pause=0.01)
                (task,) = tasks_of(processes[killed].pid)
                task.kill()
                task.wait(60)

        watch = OnceSaved(path, 3, kill_task) if killed else None
        ended = run_by_hand(path / "logs", job, deadline=150, watch=watch)
    for name, task in ended.items():
        assert task.code == 0, f"{name}: {task.output}"
    return ended


def test_all_tasks_of_an_all_reduce_job_restart_when_one_is_lost(tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    run(undisturbed, "horovod", None, workers=2)
    ended = run(killed, "horovod", "worker:1", workers=2)
    assert "worker:1 was killed by signal 9 (Killed), restart 1 of 2" in ended["worker:1"].output
    assert "was lost), restart 1 of 2" in ended["worker:0"].output
    assert "resuming after epoch" in ended["worker:0"].output
    for name, task in results(undisturbed).items():
        np.testing.assert_array_equal(results(killed)[name]["weights"], task["weights"])


@pytest.mark.parametrize("killed", ["chief:0", "ps:0"])
def test_servers_distinguish_a_lost_chief_from_a_completed_one(tmp_path: Path, killed: str) -> None:
    # The servers do not notice a chief that restarts immediately, as it does the first time.
    times, delay = (2, 8.0) if killed == "chief:0" else (1, 0.2)
    tasks = {"chief": 1, "workers": 1, "ps": 1}
    ended = run(tmp_path, "parameter_server", killed, times=times, restart_delay=delay, **tasks)
    assert f"was killed by signal 9 (Killed), restart {times} of 2" in ended[killed].output
    if killed == "chief:0":
        assert "restart 2 of 2 of all tasks in 8 s" in ended[killed].output
        assert "chief:0 was lost" in ended["ps:0"].output + ended["worker:0"].output
        assert "resuming after epoch" in ended["chief:0"].output
    (found,) = results(tmp_path).values()
    np.testing.assert_array_equal(found["counts"][-1], 1)
