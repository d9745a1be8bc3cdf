"""`tfdist run` starts scripts that do not use tfdist, and ends their servers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.launchers import outlive
from tests.support.processes import Processes, Tasks, run_by_hand
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]

PLAIN = Path(__file__).parents[1] / "support" / "plain"
PS = ("--cluster_as=flags", "--ps=1", "--workers=2", str(PLAIN / "sessions.py"), "--steps=20")
BOTH_WORKERS = ["worker:0 has", "worker:1 has"]
REPLICAS = [f"[worker:{n}] 2 replicas have" for n in (0, 1)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(PS, BOTH_WORKERS, id="sessions"),
        pytest.param((*PS, "--issync"), BOTH_WORKERS, id="sessions-issync"),
        pytest.param(
            ("--ps=1", "--workers=2", "--chief", str(PLAIN / "parameter_server.py")),
            ["the chief has"],
            id="parameter_server",
        ),
        pytest.param(
            ("--workers=2", str(PLAIN / "multi_worker_mirrored.py")),
            REPLICAS,
            id="multi_worker_mirrored",
        ),
        pytest.param(
            ("--workers=2", "-m", "tests.support.plain.multi_worker_mirrored"),
            REPLICAS,
            id="module",
        ),
        pytest.param(
            ("--strategy=horovod", "--workers=2", str(PLAIN / "horovod_loop.py")),
            ["rank 0 of 2 has", "rank 1 of 2 has"],
            id="horovod",
        ),
        pytest.param(
            (
                *("--strategy=horovod", "--host_discovery_script=echo localhost:2"),
                *("--max_workers=2", str(PLAIN / "horovod_loop.py")),
            ),
            ["rank 0 of 2 has", "rank 1 of 2 has"],
            id="elastic-horovod",
        ),
    ],
)
def test_the_job_trains_and_leaves_no_process(
    tmp_path: Path, arguments: tuple[str, ...], expected: list[str]
) -> None:
    started: set[psutil.Process] = set()

    def watch(processes: Processes, _: Mapping[str, Path]) -> None:
        with suppress(psutil.NoSuchProcess):
            started.update(psutil.Process(processes["tfdist"].pid).children(recursive=True))

    job: Tasks = {"tfdist": ([sys.executable, "-m", "tfdist", "run", *arguments], {})}
    ended = run_by_hand(tmp_path, job, deadline=100, watch=watch)["tfdist"]

    assert ended.code == 0, ended.output
    for text in expected:
        assert f"{text} trained to a loss of 0.00" in ended.output, ended.output
    assert len(started) >= len(expected)
    assert outlive(list(started)) == []


@pytest.mark.horovod
def test_ranks_of_several_launchers_start_together(tmp_path: Path) -> None:
    # The first start fails in one rank, and so in the other.
    script = str(PLAIN / "horovod_loop.py")
    with hold_ports(2) as ports:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        flags = ["--strategy=horovod", "--cluster_as=horovodrun", "--max_restarts=1"]
        command = [sys.executable, "-m", "tfdist", "run", *flags, f"--worker_hosts={hosts}"]
        job: Tasks = {
            f"launcher {index}": (
                [*command, "--job_name=worker", f"--task_index={index}", script, *once],
                {},
            )
            for index, once in enumerate([[], [str(tmp_path / "failed")]])
        }
        ended = run_by_hand(tmp_path, job, deadline=100)
    for index, launcher in enumerate(ended.values()):
        assert launcher.code == 0, launcher.output
        assert "restart 1 of 1" in launcher.output
        assert launcher.output.count(f"waiting for worker:{1 - index}") <= 2
        assert f"rank {index} of 2 has trained to a loss of 0.00" in launcher.output


def test_the_scripts_do_not_use_tfdist() -> None:
    for script in PLAIN.glob("*.py"):
        assert "tfdist" not in script.read_text()
