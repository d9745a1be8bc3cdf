"""Where the tasks of a job on several hosts are, and what each host is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfdist.errors import UsageError
from tfdist.launch.host_discovery import Host
from tfdist.launch.remote.hosts import hosts_in, hosts_of
from tfdist.launch.remote.plan import HostPlan, plan
from tfdist.launch.remote.server import read_plan
from tfdist.launch.spec import JobSpec

pytestmark = pytest.mark.stacks("newest")

ENVIRON = {"TF_X": "1", "TF_CONFIG": "{}", "HOROVOD_RANK": "3", "HOROVOD_LOG": "a", "HOME": "/me"}


def planned(hosts: str, *, tls: bool = False, **options: Any) -> dict[str, HostPlan]:
    job = JobSpec(python="python", script="train.py", **options)
    return plan(
        job,
        hosts_of(hosts),
        token="token",
        environ=ENVIRON,
        directory="/here",
        grace_period=30.0,
        tls=tls,
    )


def test_the_tasks_fill_the_slots() -> None:
    plans = planned(
        "a,b:2", strategy="parameter_server", ps=3, workers=2, chief=True, evaluator=True
    )
    names = {host: [task.name for task in own.tasks] for host, own in plans.items()}
    assert names == {
        "a": ["chief:0", "ps:0", "ps:2", "evaluator:0"],
        "b": ["worker:0", "worker:1", "ps:1"],
    }
    config = json.loads(plans["b"].tasks[0].environment["TF_CONFIG"])
    hosts = {
        name: [address.partition(":")[0] for address in addresses]
        for name, addresses in config["cluster"].items()
    }
    assert hosts == {"chief": ["a"], "worker": ["b", "b"], "ps": ["a", "b", "a"]}
    every = [address for job in config["cluster"].values() for address in job]
    assert len({*every}) == 6
    assert config["task"] == {"type": "worker", "index": 0}


def test_a_task_gets_what_changes_tensorflow_and_not_another_place() -> None:
    environment = planned("a,b", workers=2, cluster_as="flags")["a"].tasks[0].environment
    assert environment["TF_X"] == "1"
    assert environment["HOROVOD_LOG"] == "a"
    assert environment["TFDIST_JOB_TOKEN"] == "token"
    assert not {"TF_CONFIG", "HOROVOD_RANK", "HOME"} & {*environment}


def test_tfdist_exec_makes_the_tunnel_of_each_task_in_the_cluster() -> None:
    tasks = planned("a:2", tls=True, workers=2, cluster_as="flags", evaluator=True)["a"].tasks
    execute = ("python", "-m", "tfdist", "exec", "--strategy=multi_worker_mirrored")
    assert tasks[0].command == (*execute, "--cluster_as=flags", "--tls", "train.py")
    assert json.loads(tasks[0].environment["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert tasks[2].command[:2] == ("python", "train.py")


def test_the_tasks_of_a_host_divide_its_cores() -> None:
    plans = planned("a:2", workers=2)
    tasks = read_plan(json.loads(json.dumps(plans["a"].as_json())), {"TF_X": "2"})
    assert [task.environment["TFDIST_CORES"] for task in tasks] == ["0/2", "1/2"]
    assert tasks[0].environment["TF_X"] == "1"
    assert tasks[0].command == ("python", "train.py")


def test_there_must_be_a_slot_for_each_task() -> None:
    with pytest.raises(UsageError, match="--workers: received 3; accepted: at most 2"):
        planned("a,b", workers=3)


def test_hosts_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# hosts\nb slots=2\na:3\n\nc slots = 1 max_slots=4\nd\n")
    expected = (Host("b", 2), Host("a", 3), Host("c", 1), Host("d", 1))
    assert hosts_in(str(file)) == expected
    for slots in ("1025", "9" * 5000):
        file.write_text(f"a slots={slots}\n")
        with pytest.raises(UsageError, match="a has more than 1024 slots"):
            hosts_in(str(file))
    file.write_text("# none\n")
    with pytest.raises(UsageError, match="--hostfile"):
        hosts_in(str(file))
