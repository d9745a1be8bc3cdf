"""Tasks that cannot start together: every task exits and names the task at fault."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes import (
    PROGRAM,
    Ended,
    Tasks,
    by_flags,
    by_tf_config,
    cluster_of,
    directories,
    run_by_hand,
)
from tfdist.cluster import Cluster, Task
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(120)]

STRATEGIES = ("multi_worker_mirrored", "horovod", "parameter_server")
DEADLINE = 60.0


def arguments(path: Path, strategy: str, seconds: float = 5.0) -> list[str]:
    return [*directories(path), f"--strategy={strategy}", f"--startup_timeout={seconds}"]


def cluster_for(strategy: str, ports: tuple[int, ...]) -> Cluster:
    """Three tasks; under parameter_server the last one is a ps."""
    ps = int(strategy == "parameter_server")
    return cluster_of(ports, workers=3 - ps, ps=ps)


def run(path: Path, tasks: Tasks, *, copies: bool = True) -> dict[str, Ended]:
    ended = run_by_hand(path / "logs", tasks, deadline=DEADLINE, copies=copies)
    assert not (path / "output").exists(), "nothing should have been trained"
    return ended


def check_all(ended: Mapping[str, Ended], *sentences: str, code: int = 1) -> None:
    """Checks that every task exited with this code and printed one of the sentences."""
    for name, task in ended.items():
        assert task.code == code, f"{name}: {task.output}"
        found = any(f"tfdist: error: {sentence}" in task.output for sentence in sentences)
        assert found, f"{name}: {task.output}"


def command_of(cluster: Cluster, task: Task, flags: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command and environment of one task, configured with this cluster."""
    return [sys.executable, PROGRAM, *cluster.flags(task), *flags], {}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_task_names_a_task_that_never_starts(tmp_path: Path, strategy: str) -> None:
    with hold_ports(3) as ports:
        cluster = cluster_for(strategy, ports)
        tasks = by_tf_config(cluster, arguments(tmp_path, strategy))
        *_, absent = cluster.tasks()
        del tasks[str(absent)]
        ended = run(tmp_path, tasks)
    address = cluster.address(absent)
    check_all(ended, f"{absent} has not started: nothing listens at {address}.")
    for task in ended.values():
        assert f" and {cluster.tasks()[1]} → {absent} {address} refused" in task.output


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_every_task_names_a_task_with_a_different_port_for_itself(
    tmp_path: Path, strategy: str
) -> None:
    with hold_ports(4) as ports:
        cluster = cluster_for(strategy, ports[:3])
        wrong = cluster_for(strategy, (ports[0], ports[3], ports[2]))
        flags = arguments(tmp_path, strategy, 20)
        tasks = by_flags(cluster, flags)
        tasks["worker:1"] = command_of(wrong, Task("worker", 1), flags)
        ended = run(tmp_path, tasks)
    check_all(
        ended,
        f"the address of worker:1 is not the same in all tasks: 127.0.0.1:{ports[1]} in "
        f"{cluster.tasks()[0]} and {cluster.tasks()[2]}, 127.0.0.1:{ports[3]} in worker:1.",
    )


def test_every_task_names_a_task_with_swapped_addresses(tmp_path: Path) -> None:
    strategy = "multi_worker_mirrored"
    with hold_ports(3) as ports:
        cluster = cluster_for(strategy, ports)
        wrong = cluster_for(strategy, (ports[0], ports[2], ports[1]))
        flags = arguments(tmp_path, strategy, 20)
        tasks = by_flags(cluster, flags)
        tasks["worker:0"] = command_of(wrong, Task("worker", 0), flags)
        ended = run(tmp_path, tasks)
    check_all(
        ended,
        f"the address of worker:1 is not the same in all tasks: 127.0.0.1:{ports[1]} in worker:1 "
        f"and worker:2, 127.0.0.1:{ports[2]} in worker:0.",
    )


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "parameter_server"])
def test_every_task_names_a_task_with_a_different_number_of_tasks(
    tmp_path: Path, strategy: str
) -> None:
    ps = int(strategy == "parameter_server")
    with hold_ports(3 + ps) as ports:
        cluster = cluster_of(ports, workers=3, ps=ps)
        fewer = cluster_of([*ports[:2], *ports[3:]], workers=2, ps=ps)
        flags = arguments(tmp_path, strategy, 20)
        tasks = by_flags(cluster, flags)
        tasks["worker:0"] = command_of(fewer, Task("worker", 0), flags)
        ended = run(tmp_path, tasks)
    check_all(
        ended,
        f"the address of worker:2 is not the same in all tasks: 127.0.0.1:{ports[2]} in worker:1"
        f"{', worker:2 and ps:0' if ps else ' and worker:2'}, none in worker:0.",
    )


def test_every_task_reports_different_strategies(tmp_path: Path) -> None:
    with hold_ports(2) as ports:
        cluster = cluster_of(ports, workers=2)
        tasks = by_flags(cluster, arguments(tmp_path, "multi_worker_mirrored", 20))
        flags = arguments(tmp_path, "horovod", 20)
        tasks["worker:1"] = command_of(cluster, Task("worker", 1), flags)
        ended = run(tmp_path, tasks)
    check_all(
        ended,
        "--strategy is not the same in all tasks: multi_worker_mirrored in worker:0, horovod in "
        "worker:1.",
    )


def test_one_address_with_two_host_names_is_rejected(tmp_path: Path) -> None:
    with hold_ports(2) as (first, second):
        last = f"localhost:{second}"
        workers = (f"127.0.0.1:{first}", f"127.0.0.1:{second}")
        cluster = Cluster(worker=workers, ps=(last,))
        ended = run(tmp_path, by_tf_config(cluster, arguments(tmp_path, "parameter_server")))
    check_all(ended, f"address of {cluster.tasks()[2]}: received '{last}'", code=2)
    for task in ended.values():
        assert f"worker:1 has it already, as {workers[1]}" in task.output


@pytest.mark.parametrize("strategy", ["horovod"])
def test_a_port_in_use_by_another_program_is_reported(tmp_path: Path, strategy: str) -> None:
    with hold_ports(2) as ports, socket.create_server(("127.0.0.1", 0)) as taken:
        cluster = cluster_for(strategy, (*ports, taken.getsockname()[1]))
        ended = run(tmp_path, by_flags(cluster, arguments(tmp_path, strategy, 8)))
    *others, last = cluster.tasks()
    address = cluster.address(last)
    check_all({"last": ended.pop(str(last))}, f"address of {last}: received '{address}'", code=2)
    assert len(ended) == len(others)
    check_all(ended, f"{last} is not at its address {address}: connected, but nothing answers.")


def test_a_task_that_exits_before_the_others_have_started_is_reported(tmp_path: Path) -> None:
    strategy = "multi_worker_mirrored"
    with hold_ports(3) as ports:
        cluster = cluster_for(strategy, ports)
        tasks = by_flags(cluster, arguments(tmp_path, strategy, 10))
        del tasks["worker:2"]
        # It is killed when worker:0 has logged that it waits.
        log = tmp_path / "logs" / "worker-0.log"
        script = tmp_path / "killed.sh"
        script.write_text(
            '"$@" & until grep -q "waits for worker:2 (" ' + f"{log}; do sleep 0.1; done\n"
            "kill -KILL $!; wait $!"
        )
        command, environment = tasks["worker:1"]
        tasks["worker:1"] = (["sh", str(script), *command], environment)
        # All tasks start equally slowly, so that worker:1 arrives before worker:0 logs its wait.
        ended = run(tmp_path, tasks, copies=False)
    assert ended["worker:1"].code == 137
    assert ended["worker:0"].code == 1
    assert "worker:1 started (on host " in ended["worker:0"].output
    assert f"worker:2 has not started: nothing listens at {cluster.worker[2]}." in (
        ended["worker:0"].output
    )


def test_a_server_at_the_address_of_another_task_is_reported(tmp_path: Path) -> None:
    """A process left over from an older job, which blocks the start of an all-reduce job."""
    strategy = "multi_worker_mirrored"
    server = (
        "import sys, time, tensorflow as tf\n"
        "jobs = {'worker': sys.argv[1].split(',')}\n"
        "server = tf.distribute.Server(jobs, job_name='worker', task_index=1)\n"
        "print('serving', flush=True)\n"
        "time.sleep(60)"
    )
    with hold_ports(2) as ports:
        cluster = cluster_of(ports, workers=2)
        log = tmp_path / "logs" / "older.log"
        tasks = by_flags(cluster, arguments(tmp_path, strategy))
        del tasks["worker:1"]
        command, environment = tasks["worker:0"]
        script = tmp_path / "when_it_serves.sh"
        older = tmp_path / "older.sh"
        older.write_text('echo $$ > "$PID"; exec "$@"')
        pid = tmp_path / "pid"
        tasks["older"] = (
            ["sh", str(older), sys.executable, "-c", server, ",".join(cluster.worker)],
            {"PID": str(pid)},
        )
        script.write_text(
            f'until grep -q serving {log}; do sleep 0.1; done; "$@"; code=$?; '
            f"kill $(cat {pid}); exit $code"
        )
        tasks["worker:0"] = (["sh", str(script), *command], environment)
        ended = run(tmp_path, tasks)
    check_all(
        {"worker:0": ended["worker:0"]},
        f"worker:1 is running already: a TensorFlow server answers at {cluster.worker[1]}.",
    )
