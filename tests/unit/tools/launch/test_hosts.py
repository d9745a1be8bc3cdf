"""Where the tasks of a job on several hosts are, and what each host is told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_specs import job_spec
from tfdist.errors import UsageError
from tfdist.tools.launch.host_discovery import Host
from tfdist.tools.launch.job_spec import TaskSpec, task_specs
from tfdist.tools.launch.remote import server
from tfdist.tools.launch.remote.hosts import hosts_in, hosts_of
from tfdist.tools.launch.remote.plan import plan

pytestmark = pytest.mark.stacks("newest")

ENVIRON = {"TF_X": "1", "TF_CONFIG": "{}", "HOROVOD_RANK": "3", "HOROVOD_LOG": "a", "HOME": "/me"}


def planned(
    hosts: str, *, tls: bool = False, environ: Mapping[str, str] = ENVIRON, **options: Any
) -> dict[str, dict[str, Any]]:
    job = job_spec(**options)
    return plan(job, hosts_of(hosts), environ=environ, tls=tls)


def tasks_of(
    plan: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> dict[str, TaskSpec]:
    """The tasks that a host with an environment plans, by name."""
    there = {**(environ or {}), **plan["variables"]}
    found = server.read_plan(json.loads(json.dumps(plan)), there)
    return {task.name: replace(task, environment=task.environ(there)) for task in found}


def test_the_tasks_fill_the_slots() -> None:
    plans = planned(
        "a,b:2", strategy="parameter_server", ps=3, workers=2, chief=True, evaluator=True
    )
    names = {host: own["tasks"] for host, own in plans.items()}
    assert names == {
        "a": ["chief:0", "ps:0", "ps:2", "evaluator:0"],
        "b": ["worker:0", "worker:1", "ps:1"],
    }
    config = json.loads(tasks_of(plans["b"])["worker:0"].environment["TF_CONFIG"])
    hosts = {
        name: [address.partition(":")[0] for address in addresses]
        for name, addresses in config["cluster"].items()
    }
    assert hosts == {"chief": ["a"], "worker": ["b", "b"], "ps": ["a", "b", "a"]}
    every = [address for job in config["cluster"].values() for address in job]
    assert len({*every}) == 6
    assert config["task"] == {"type": "worker", "index": 0}


def test_a_task_gets_what_changes_tensorflow_and_not_another_place() -> None:
    plans = planned("a,b", workers=2, cluster_as="flags")
    environment = tasks_of(plans["a"])["worker:0"].environment
    assert environment["TF_X"] == "1"
    assert environment["HOROVOD_LOG"] == "a"
    token = environment["TFDIST_JOB_TOKEN"]
    assert token and token == plans["b"]["variables"]["TFDIST_JOB_TOKEN"]
    assert not {"TF_CONFIG", "HOROVOD_RANK", "HOME"} & {*environment}


def test_tfdist_exec_makes_the_tunnel_of_each_task_in_the_cluster() -> None:
    plan = planned("a:2", tls=True, workers=2, cluster_as="flags", evaluator=True)["a"]
    tasks = [*tasks_of(plan).values()]
    execute = ("python", "-m", "tfdist", "exec", "--strategy=multi_worker_mirrored")
    assert tasks[0].command == (*execute, "--cluster_as=flags", "--tls", "train.py")
    assert json.loads(tasks[0].environment["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}
    assert tasks[2].command[:2] == ("python", "train.py")


def test_the_tasks_of_a_host_divide_its_cores() -> None:
    plans = planned("a:2", workers=2)
    tasks = [*tasks_of(plans["a"], {"TF_X": "2"}).values()]
    assert [task.environment["TFDIST_CORES"] for task in tasks] == ["0/2", "1/2"]
    assert tasks[0].environment["TF_X"] == "1"
    assert tasks[0].command == ("python", "train.py")


def settings(tasks: Sequence[TaskSpec], environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The cores and threads of each task that inherits `environ`, and its GPUs."""
    names = ("TFDIST_CORES", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "CUDA_VISIBLE_DEVICES")
    every = {task.name: {**environ, **task.environment} for task in tasks}
    return {task: {name: own[name] for name in names if name in own} for task, own in every.items()}


@pytest.mark.parametrize("user", [{}, {"OMP_NUM_THREADS": "3"}, {"TF_NUM_INTRAOP_THREADS": "5"}])
@pytest.mark.parametrize("divides_cores", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"workers": 2, "chief": True, "evaluator": True},
        {"workers": 2, "ps": 2, "chief": True, "evaluator": True},
        {"workers": 1, "ps": 1},
    ],
)
def test_a_host_gives_its_tasks_the_cores_and_threads_of_a_job_without_hosts(
    options: dict[str, Any],
    divides_cores: bool,
    user: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "given_cores", lambda _: 8)
    job = job_spec(divides_cores=divides_cores, **options)
    ports = range(4001, 4001 + job.num_ports)
    expected = settings(task_specs(job, ports=ports, cores=8, environ=user), user)
    told = planned("a:3", environ=user, divides_cores=divides_cores, **options)["a"]
    assert settings([*tasks_of(told).values()], {}) == expected
    if job.counts["worker"] > 1:
        shares = {name: found.get("TFDIST_CORES") for name, found in expected.items()}
        number = 3 if job.counts["chief"] and not job.counts["ps"] else 2
        assert shares["worker:1"] == (f"{number - 1}/{number}" if divides_cores else "0/1")
    if job.counts["ps"] and not user:
        assert expected["ps:0"]["OMP_NUM_THREADS"] == "2"


def test_a_ps_on_a_host_where_no_task_computes_may_use_all_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "given_cores", lambda _: 8)
    plans = planned("a,b", workers=1, ps=2)
    assert settings([*tasks_of(plans["b"]).values()], {}) == {
        "ps:1": {"CUDA_VISIBLE_DEVICES": "-1"}
    }


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
