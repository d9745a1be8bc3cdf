"""Flags of a job before the script: checked before anything starts, passed on, overridden by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.job_specs import job_spec
from tfdist.cluster import Cluster, Task
from tfdist.cluster.config import ClusterConfig
from tfdist.config.flags import FLAGS_VARIABLE, read_flags
from tfdist.errors import EXIT_USAGE
from tfdist.tools.commands import cli
from tfdist.tools.launch.job_spec import task_specs
from tfdist.tools.launch.task_plan import ScriptSpec, own_place, task_plan

pytestmark = pytest.mark.stacks("newest")

PS = ["--strategy=parameter_server", "--ps=1", "--workers=3", "--chief"]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('The script has started.')\n")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PS, "--sync", "--replicas_to_aggregate=5"], "--replicas_to_aggregate: received 5;"),
        ([*PS, "--partition-bytes=0"], "--partition_bytes: received 0; accepted: at least 1"),
        (["--strategy=in_graph", "--workers=4", "--stages=3"], "--stages: received '3 with 4 wor"),
        (["--strategy=mirrored", "--nosync"], "--sync: received False; accepted: not supported"),
        (["--num_gpus=-1"], "--num_gpus: received -1; accepted: at least 0"),
        (["--strategy=one_device", "--heartbeat_timeout=3"], "--heartbeat_timeout: received 3.0;"),
    ],
)
def test_a_mistake_is_found_before_anything_starts(
    arguments: list[str], message: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", *arguments, script])
    assert ended.value.code == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tfdist: error: {message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--ps_hosts=localhost:7", "--strategy=parameter_server", "--partition_bytes=0"],
            "--partition_bytes: received 0",
        ),
        (["--strategy=in_graph", "--stages=4"], "--stages: received '4 with 2 workers'"),
        (["--strategy=horovod", "--num_gpus=2"], "--num_gpus: received 2; accepted: 0 or 1"),
    ],
)
def test_tfdist_check_finds_it_without_the_other_tasks(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    task = ["--job_name=worker", "--task_index=0", "--worker_hosts=localhost:5,localhost:6"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", *task, *arguments])
    assert ended.value.code == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tfdist: error: {message}")


def test_the_flags_are_passed_on_to_each_task(script: str) -> None:
    flags = {"sync": True, "replicas_to_aggregate": 2, "startup_timeout": 5.0}
    job = job_spec(script=script, strategy="parameter_server", ps=1, workers=2, flags=flags)
    tasks = task_specs(job, ports=range(1, 4), cores=2, environ={})
    assert [json.loads(task.environment[FLAGS_VARIABLE]) for task in tasks] == [flags] * 3
    found = read_flags(tasks[0].environment)
    assert found.of_strategy == {"sync": True, "replicas_to_aggregate": 2}
    assert found.startup_timeout == 5.0


def test_a_task_without_flags_has_none_of_another_job(script: str) -> None:
    job = job_spec(script=script, workers=2)
    environ = {FLAGS_VARIABLE: '{"sync": true}'}
    for task in task_specs(job, ports=range(1, 3), cores=2, environ=environ):
        assert FLAGS_VARIABLE not in task.environment
        assert FLAGS_VARIABLE in task.removed


def test_the_task_of_this_machine_gets_them_too() -> None:
    config = ClusterConfig(Cluster(worker=("a:1", "b:1")), Task("worker", 0), "TF_CONFIG")
    job = ScriptSpec(
        python="python",
        script="train.py",
        strategy="multi_worker_mirrored",
        flags={"all_reduce": "ring"},
    )
    place = own_place(job, config, {}, restarts=True)
    task = task_plan(job, config.cluster, config.task, place)
    assert json.loads(task.environment[FLAGS_VARIABLE]) == {"all_reduce": "ring"}
