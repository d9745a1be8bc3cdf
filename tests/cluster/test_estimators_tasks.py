"""The tasks of an Estimator job: the chief, the evaluator, slow and late workers, and exits."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.support.estimator_jobs import (
    EVALUATOR,
    EXAMPLES,
    PROGRAM,
    by_hand,
    check_exits,
    check_output_files,
    check_speed,
    evaluations,
    run,
    variables,
)
from tests.support.processes import Processes, cluster_of, directories, results, run_by_hand
from tests.support.terminal import Terminal
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(150)]


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        (True, ["--strategy=parameter_server"]),
        (False, ["--strategy=parameter_server", "--sync"]),
        (False, ["--strategy=multi_worker_mirrored"]),
    ],
)
def test_an_evaluator_evaluates_instead_of_the_chief(
    tmp_path: Path, flags: bool, arguments: list[str]
) -> None:
    ps = 1 if "--strategy=parameter_server" in arguments else 0
    with hold_ports(2 + ps) as ports:
        cluster = cluster_of(ports, chief=1, workers=1, ps=ps)
        tasks = by_hand(cluster, [*directories(tmp_path), *arguments], EVALUATOR, flags=flags)
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=90)
    check_exits(tmp_path, ended)
    assert "final" not in ended["chief:0"].output
    assert "final" in ended["evaluator:0"].output
    assert evaluations(tmp_path)[-1]["global_step"] >= 24
    assert evaluations(tmp_path)[-1]["seen"] == 11
    check_output_files(tmp_path)
    if "--sync" in arguments or not ps:
        np.testing.assert_array_equal(variables(tmp_path)["counts"], 4)


@pytest.mark.parametrize(
    ("chief", "arguments"),
    [
        ("worker:0", ["--strategy=parameter_server", "--sync"]),
        ("worker:0", ["--strategy=horovod"]),
        # The test of the platform's layout covers a master under parameter_server.
        ("chief:0", ["--strategy=multi_worker_mirrored"]),
    ],
)
def test_a_chief_without_an_evaluator_evaluates(
    tmp_path: Path, chief: str, arguments: list[str]
) -> None:
    """The chief is worker 0 or the master, and the job is started by hand."""
    ps = 1 if "--strategy=parameter_server" in arguments else 0
    is_master = chief == "chief:0"
    with hold_ports(2 + ps) as ports:
        cluster = cluster_of(ports, chief=int(is_master), workers=2 - is_master, ps=ps)
        tasks = by_hand(
            cluster, [*directories(tmp_path), *arguments], flags=not is_master, master=is_master
        )
        ended = run_by_hand(tmp_path / "logs", tasks, deadline=90)
    check_exits(tmp_path, ended)
    assert [name for name, task in ended.items() if "final" in task.output] == [chief]
    assert evaluations(tmp_path)[-1]["global_step"] == 24
    assert evaluations(tmp_path)[-1]["seen"] == 11
    check_output_files(tmp_path)


def test_with_a_backup_worker_fast_workers_do_not_wait_for_a_slow_one(tmp_path: Path) -> None:
    updates = 120
    ended = run(
        tmp_path,
        "parameter_server",
        ["--ps=1", "--workers=3"],
        "--sync",
        "--replicas_to_aggregate=2",
        "--slow_worker=2",
        "--start_seconds=1",
        "--step_seconds=0.05",
        f"--max_steps={updates}",
        "--save_steps=1000",
    )
    times = {name: task["times"] for name, task in results(tmp_path).items()}
    runs = {name: len(steps) for name, steps in times.items()}
    assert runs["worker-0"] == updates, "a fast worker should contribute once to each update"
    # Only two fast workers train until the slow one, which is ten times slower, has started.
    alone, together = np.split(
        times["worker-0"], np.searchsorted(times["worker-0"], times["worker-2"][:1])
    )
    assert len(alone) > 1, "two workers should be enough to start"
    speed_alone, speed_together = (len(steps) / np.ptp(steps) for steps in (alone, together))
    assert speed_together >= 0.4 * speed_alone, "the slow worker should not delay the others"
    assert runs["worker-2"] < len(together) / 2, runs
    check_speed(ended, times["worker-0"], batch=2 * 4)
    # Contributed gradients that are in no update were stale.
    dropped, contributed = map(
        int, ended.output.split(" gradients were stale")[0].rsplit("\n", 1)[1].split()[2::2]
    )
    assert contributed == pytest.approx(sum(runs.values()), abs=2)
    assert dropped == pytest.approx(contributed - 2 * updates, abs=3)
    assert dropped >= runs["worker-2"] - 3 > 0, "the gradients of the slow worker are always stale"


def test_a_killed_asynchronous_worker_is_replaced(tmp_path: Path) -> None:
    with hold_ports(4) as ports:
        cluster = cluster_of(ports, workers=3, ps=1)
        tasks = by_hand(
            cluster,
            [*directories(tmp_path), "--step_seconds=0.05", "--max_steps=1200", "--save_steps=50"],
        )
        command, environment = tasks["worker:2"]
        # A shell that starts a replacement when the first process is killed.
        again = 'echo "$$"; "$@"; test $? = 137 && echo replaced && exec "$@"'
        tasks["worker:2"] = (["bash", "-c", again, "bash", *command], environment)
        killed: list[int] = []

        def watch(processes: Processes, paths: Mapping[str, Path]) -> None:
            if not killed and re.search(r"step = 1\d\d", paths["worker:0"].read_text()):
                shell = processes["worker:2"].pid
                (child,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
                os.kill(int(child), signal.SIGKILL)
                killed.append(int(child))

        ended = run_by_hand(tmp_path / "logs", tasks, deadline=110, watch=watch)
    assert killed, ended["worker:0"].output
    check_exits(tmp_path, ended)
    assert "replaced" in ended["worker:2"].output
    replacement = results(tmp_path)["worker-2"]["seen"]
    assert 0 < len(replacement) < 1100 * 4, "it should continue at the step of the others"
    assert set(replacement) <= set(range(2, EXAMPLES, 3)), "it should read only its own shard"


def test_a_worker_that_starts_late_trains_with_the_others(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        "parameter_server",
        ["--ps=1", "--workers=2"],
        *("--sync", "--replicas_to_aggregate=1"),
        "--slow_worker=1",
        "--start_seconds=2",
        "--step_seconds=0.02",
        "--max_steps=400",
        "--save_steps=1000",
    )
    late = results(tmp_path)["worker-1"]["times"]
    early = results(tmp_path)["worker-0"]["times"]
    assert early[0] < late[0] < early[-1], "it should start while the others train"
    assert late[-1] <= early[-1] + 5
    assert "step 40" in ended.output


def test_the_panel_and_status_show_how_far_the_training_is(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    command = [sys.executable, "-m", "tfdist", "run", "--ps=1", "--workers=2", PROGRAM]
    command += ["--step_seconds=0.05", "--max_steps=300", *directories(tmp_path)]
    with Terminal(command) as terminal:
        # The bar has no epoch.
        terminal.wait_for(" of 300", deadline=100)
        output = str(tmp_path / "output")
        status = subprocess.run(
            [sys.executable, "-m", "tfdist", "status", output],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert terminal.wait(deadline=100) == 0, terminal.text
    assert re.search(r"^step \d+ of 300, loss \d", status.stdout, re.MULTILINE), status
    assert re.search(
        r"^tfdist: speed +\d\S* steps/s; step 30\d, loss ", terminal.text, re.MULTILINE
    )


def test_a_worker_that_is_ready_after_the_training_exits(tmp_path: Path) -> None:
    """It starts before the end of training, but its session starts after it."""
    flags = ["--sync", "--replicas_to_aggregate=1", "--slow_worker=1", "--build_seconds=6"]
    run(tmp_path, "parameter_server", ["--ps=1", "--workers=2"], *flags)
    assert evaluations(tmp_path)[-1]["global_step"] >= 24
