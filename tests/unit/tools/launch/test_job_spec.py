"""The plan of a local job: golden files, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_specs import job_spec as spec
from tests.support.processes import ROOT
from tfdist.cluster import Cluster, Task
from tfdist.errors import UsageError
from tfdist.process import setup
from tfdist.tools.launch.job_spec import JobSpec, TaskSpec, task_specs
from tfdist.tools.launch.output import LINE_BYTES, PROGRESS_SECONDS, LineReader, prefix
from tfdist.tools.launch.task_plan import cluster_for

pytestmark = pytest.mark.stacks("newest", horovod=("2.15",))

GOLDEN = Path(__file__).parent / "golden"


def planned(
    job: JobSpec, *, cores: int = 8, environ: dict[str, str] | None = None
) -> dict[str, TaskSpec]:
    ports = range(4001, 4001 + job.num_ports)
    return {
        task.name: task for task in task_specs(job, ports=ports, cores=cores, environ=environ or {})
    }


@pytest.fixture(autouse=True)
def cpu_with_avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "cpu_flags", lambda: frozenset({"avx2"}))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("one_device", spec(args=("--note=it's here", "--ps=3"))),
        ("mirrored_evaluator", spec(strategy="mirrored", evaluator=True)),
        ("parameter_server", spec(ps=2, workers=2, chief=True, evaluator=True)),
        ("parameter_server_without_chief", spec(ps=1, workers=2)),
        ("multi_worker_mirrored", spec(workers=2, chief=True)),
        ("horovod", spec(strategy="horovod", workers=1, chief=True, evaluator=True)),
        ("flags", spec(ps=1, workers=2, cluster_as="flags", args=("--issync", "--steps=9"))),
        ("module", spec(script="examples.train", module=True, args=("-m",))),
    ],
)
def test_plan_is_as_in_the_golden_file(name: str, job: JobSpec) -> None:
    lines = [f"[{task}] {spec.shell()}\n" for task, spec in planned(job).items()]

    assert "".join(lines).replace(f"{ROOT}/", "") == (GOLDEN / f"launch_{name}.txt").read_text()


@pytest.mark.parametrize(
    ("given", "strategy"),
    [
        ({}, "one_device"),
        ({"workers": 2}, "multi_worker_mirrored"),
        ({"chief": True}, "multi_worker_mirrored"),
        ({"ps": 1}, "parameter_server"),
        ({"ps": 1, "workers": 3, "chief": True}, "parameter_server"),
        ({"strategy": "mirrored"}, "mirrored"),
    ],
)
def test_auto_follows_the_numbers_of_tasks(given: dict[str, Any], strategy: str) -> None:
    assert spec(**given).strategy == strategy


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("--strategy", {"strategy": "mirorred"}),
        ("--workers", {"workers": 0}),
        ("--ps", {"ps": -1}),
        ("--strategy", {"strategy": "parameter_server"}),
        ("--strategy", {"strategy": "horovod", "ps": 1}),
        ("--strategy", {"strategy": "multi_worker_mirrored", "workers": 2, "ps": 1}),
        ("--strategy", {"strategy": "one_device", "ps": 1}),
        ("--strategy", {"strategy": "central_storage", "workers": 2}),
        ("--strategy", {"strategy": "mirrored", "chief": True}),
        ("--cluster_as", {"cluster_as": "flags"}),
        ("--cluster_as", {"cluster_as": "master", "ps": 1, "workers": 2}),
        ("--cluster_as", {"strategy": "mirrored", "evaluator": True, "cluster_as": "flags"}),
        ("--cluster_as", {"strategy": "horovod", "workers": 2, "cluster_as": "flags"}),
        ("--cluster_as", {"workers": 2, "cluster_as": "horovodrun"}),
        ("--cluster_as", {"ps": 1, "workers": 2, "cluster_as": "torch"}),
    ],
)
def test_tasks_that_a_strategy_has_no_use_for_are_refused(
    field: str, given: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as raised:
        spec(**given)

    assert raised.value.field == field


@pytest.mark.parametrize(("cores", "threads"), [(8, "4"), (3, "1"), (1, "1")])
def test_cores_are_divided_among_the_tasks_that_train(cores: int, threads: str) -> None:
    tasks = planned(spec(ps=1, workers=2, chief=True), cores=cores)

    assert {name: task.environment.get("OMP_NUM_THREADS") for name, task in tasks.items()} == {
        "chief:0": None,
        "worker:0": threads,
        "worker:1": threads,
        "ps:0": str(max(1, cores // 4)),
    }
    assert {name: task.environment.get("TFDIST_CORES") for name, task in tasks.items()} == {
        "chief:0": None,
        "worker:0": "0/2",
        "worker:1": "1/2",
        "ps:0": None,
    }


def test_cores_are_shared_where_that_is_asked_for_or_one_task_trains() -> None:
    shared = planned(spec(ps=1, workers=2, divides_cores=False))
    alone = planned(spec(ps=1, workers=1, chief=True))

    assert [shared[f"worker:{n}"].environment["TFDIST_CORES"] for n in (0, 1)] == ["0/1", "0/1"]
    assert not any("TFDIST_CORES" in task.environment for task in alone.values())


def test_what_the_user_has_set_is_kept() -> None:
    task = planned(spec(), environ={"OMP_NUM_THREADS": "3"})["worker:0"]

    assert task.environment["OMP_NUM_THREADS"] == "3"
    assert task.environment["TF_NUM_INTRAOP_THREADS"] == "3"


def test_the_place_in_another_job_is_not_inherited() -> None:
    outer = {"TFDIST_CORES": "0/2", "TFDIST_STRATEGY": "horovod"}
    environ = {"TF_CONFIG": "{}", "HOROVOD_RANK": "1", "HOROVOD_TIMELINE": "a.json", **outer}

    alone = planned(spec(), environ=environ)["worker:0"]
    horovod = planned(spec(strategy="horovod"), environ=environ)["worker:0"]

    assert alone.removed == ("TF_CONFIG", *outer, "HOROVOD_RANK")
    assert alone.shell().startswith("env -u TF_CONFIG -u TFDIST_CORES -u TFDIST_STRATEGY -u HOR")
    assert horovod.removed == ("TF_CONFIG", "TFDIST_CORES")
    assert horovod.environment["HOROVOD_RANK"] == "0"
    by_flags = planned(spec(workers=2, cluster_as="flags"), environ=environ)["worker:0"]
    assert by_flags.removed == ("TF_CONFIG", "HOROVOD_RANK")
    # The step of Slurm in which the launcher runs, but not the cores that Slurm gives it.
    step = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "4"}
    assert planned(spec(), environ=step)["worker:0"].removed == ("SLURM_PROCID", "SLURM_STEP_ID")


def test_the_older_dialect_of_tf_config_calls_the_chief_master() -> None:
    tasks = planned(spec(ps=1, workers=1, chief=True, evaluator=True, cluster_as="master"))

    configs = {name: json.loads(task.environment["TF_CONFIG"]) for name, task in tasks.items()}
    assert all({*config["cluster"]} == {"master", "ps", "worker"} for config in configs.values())
    assert configs["chief:0"]["task"] == {"type": "master", "index": 0}
    assert configs["evaluator:0"]["task"] == {"type": "evaluator", "index": 0}


def test_libraries_other_than_tensorflow_number_the_training_tasks() -> None:
    environ = {"RANK": "7", "KERAS_DISTRIBUTION_PROCESS_ID": "7", "LOCAL_RANK": "7"}
    keras, torch = (
        planned(spec(workers=2, cluster_as=each), environ=environ)["worker:1"]
        for each in ("keras", "torch")
    )
    assert keras.removed == ("RANK", "LOCAL_RANK")
    assert {
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": "127.0.0.1:4001,127.0.0.1:4002",
        "KERAS_DISTRIBUTION_NUM_PROCESSES": "2",
        "KERAS_DISTRIBUTION_PROCESS_ID": "1",
    }.items() <= keras.environment.items()
    assert torch.removed == ("KERAS_DISTRIBUTION_PROCESS_ID",)
    found = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4001",
        **{"WORLD_SIZE": "2", "RANK": "1", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"},
    }
    assert found.items() <= torch.environment.items()
    assert "TF_CONFIG" not in {*keras.environment, *torch.environment}
    # On several machines, and in a process alone.
    cluster = Cluster(worker=["[::1]:1", "b:2", "b:3"])
    variables, _ = cluster_for(cluster, Task("worker", 2), "torch")
    assert [*variables.values()] == ["::1", "1", "3", "2", "2", "1"]
    alone = planned(spec(cluster_as="torch"))["worker:0"].environment
    assert (alone["RANK"], alone["WORLD_SIZE"]) == ("0", "1")


def test_a_job_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec().strategy = "horovod"  # type: ignore[misc]


def test_lines_are_whole_however_they_arrive() -> None:
    reader = LineReader()
    data = "loss ½\r\n\nno end".encode()

    lines = [line for byte in data for line in reader.feed(bytes([byte]), now=0.0)]

    assert lines == ["loss ½", ""]
    assert reader.finish() == ["no end"]
    assert reader.finish() == []


def test_bytes_that_are_not_utf8_are_replaced() -> None:
    assert LineReader().feed(b"a\xffb\n", now=0.0) == ["a\ufffdb"]


def test_a_progress_bar_shows_its_last_state_and_now_and_then_one_before() -> None:
    reader = LineReader()

    assert reader.feed(b"Epoch 1\n", now=0.0) == ["Epoch 1"]
    assert reader.feed(b"\b\b\b\r1/9 [>  ]", now=1.0) == []
    assert reader.feed(b"\b\b\b\r2/9 [=> ]", now=2.0) == []
    assert reader.feed(b"\b\b\b\r3/9 [=> ]", now=PROGRESS_SECONDS) == ["2/9 [=> ]"]
    assert reader.feed(b"\b\b\b\r4/9 [==>]", now=PROGRESS_SECONDS + 1) == []
    assert reader.feed(b"\b\b\b\r9/9 [===]\n", now=PROGRESS_SECONDS + 2) == ["9/9 [===]"]


def test_a_line_without_an_end_takes_little_time_and_memory() -> None:
    reader, begin = LineReader(), time.process_time()
    for _ in range(1000):
        assert reader.feed(b"x" * (64 << 10), now=0.0) == []
    assert time.process_time() - begin < 5
    assert reader.feed(b"\nnext\n", now=0.0) == ["x" * LINE_BYTES + " … (a longer line)", "next"]


def test_a_task_keeps_its_color() -> None:
    assert prefix("ps:0", None) == "[ps:0] "
    assert prefix("ps:0", 1) == prefix("ps:0", 7) == "\033[33m[ps:0]\033[0m "
