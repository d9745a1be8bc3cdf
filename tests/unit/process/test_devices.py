"""Which GPUs a task uses, tested with simulated GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import tensorflow as tf

import tfdist.entry
from tfdist.cluster import Cluster
from tfdist.cluster.config import ClusterFlags
from tfdist.config.flags import JobFlags
from tfdist.config.strategies import table
from tfdist.estimator.estimator_job import EstimatorJob
from tfdist.process import gpus
from tfdist.process.devices import use_devices

pytestmark = pytest.mark.stacks("2.15")

GPUS = [tf.config.PhysicalDevice(f"/physical_device:GPU:{index}", "GPU") for index in range(4)]
A, B = "127.0.0.1:1", "127.0.0.1:2"


@pytest.fixture
def visible(monkeypatch: pytest.MonkeyPatch) -> list[tf.config.PhysicalDevice]:
    """The visible GPUs of a machine with four."""
    chosen = list(GPUS)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: list(GPUS))
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: chosen)

    def choose(devices: list[tf.config.PhysicalDevice], kind: str) -> None:
        assert kind == "GPU"
        chosen[:] = devices

    monkeypatch.setattr(tf.config, "set_visible_devices", choose)
    return chosen


@pytest.mark.parametrize(
    ("num_gpus", "local_rank", "expected"),
    [
        (None, None, [0, 1, 2, 3]),
        (2, None, [0, 1]),
        (0, None, []),
        (None, 2, [2]),
        (1, 0, [0]),
        (1, 3, [3]),
        (1, 5, [1]),
        (0, 1, []),
    ],
)
def test_a_task_uses_its_own_gpus(
    visible: list[tf.config.PhysicalDevice],
    num_gpus: int | None,
    local_rank: int | None,
    expected: list[int],
) -> None:
    devices = use_devices(num_gpus, local_rank=local_rank)

    assert visible == [GPUS[index] for index in expected]
    # TensorFlow numbers only the visible GPUs.
    assert devices == ([f"GPU:{index}" for index in range(len(expected))] or ["CPU:0"])


@pytest.mark.parametrize(
    ("place", "num_gpus", "users", "expected"),
    [
        ((0, 2), None, None, [0, 1]),
        ((1, 2), None, None, [2, 3]),
        ((1, 2), 1, None, [2]),
        ((2, 3), None, None, [2, 3]),
        ((4, 5), None, None, [0]),
        ((1, 2), None, "4,5,6,7", [0, 1, 2, 3]),
    ],
)
def test_the_tasks_of_a_machine_divide_its_gpus(
    visible: list[tf.config.PhysicalDevice],
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[int, int],
    num_gpus: int | None,
    users: str | None,
    expected: list[int],
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if users:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", users)

    use_devices(num_gpus, place=place)

    assert visible == [GPUS[index] for index in expected]


def test_tasks_with_the_same_host_share_a_machine() -> None:
    cluster = Cluster(chief=("a:1",), worker=("a:2", "b:1", "a:3", "[::1]:4"))

    tasks = cluster.training_tasks
    places = [cluster.local_rank_of(task, tasks) for task in tasks]

    assert places == [(0, 3), (1, 3), (0, 1), (2, 3), (0, 1)]


def test_a_rank_on_a_machine_without_gpus_uses_the_cpu() -> None:
    assert use_devices(None, local_rank=1) == ["CPU:0"]


def test_each_horovod_rank_uses_its_own_gpu(
    visible: list[tf.config.PhysicalDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfdist.strategies import horovod

    monkeypatch.setenv("HOROVOD_GLOO_TIMEOUT_SECONDS", "30")
    monkeypatch.setattr(horovod.hvd, "init", lambda: None)
    monkeypatch.setattr(horovod.hvd, "local_rank", lambda: 1)
    monkeypatch.setattr(horovod.hvd, "rank", lambda: 1)
    monkeypatch.setattr(horovod.hvd, "size", lambda: 2)

    job = tfdist.entry.create_of(EstimatorJob, JobFlags.of(strategy="horovod", num_gpus=1), {})

    assert visible == [GPUS[1]]
    assert job.sessions.config.gpu_options.visible_device_list == "1"


def test_an_evaluator_accepts_the_flags_of_the_other_tasks(
    visible: list[tf.config.PhysicalDevice],
) -> None:
    hosts = ClusterFlags(job_name="evaluator", task_index="0", chief_hosts=A, worker_hosts=B)
    job = tfdist.entry.create_of(
        EstimatorJob, JobFlags.of(cluster=hosts, strategy="multi_worker_mirrored", num_gpus=2), {}
    )
    assert job.name == "one_device"


def test_one_process_trains_on_all_its_gpus(
    visible: list[tf.config.PhysicalDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[list[str]] = []

    def build(strategy: object, devices: list[str]) -> tf.distribute.Strategy:
        built.append(devices)
        return tf.distribute.get_strategy()

    monkeypatch.setattr("tfdist.strategies.mirrored.Mirrored.kind", build)

    job = tfdist.entry.create_of(EstimatorJob, JobFlags.of(num_gpus=2), {})

    assert job.name == "mirrored"
    assert built == [["GPU:0", "GPU:1"]]


@pytest.mark.parametrize(
    ("cluster", "source", "environ", "num_gpus", "name"),
    [
        (Cluster(), "default", {}, 1, "one_device"),
        (Cluster(), "default", {}, None, "one_device"),
        (Cluster(worker=(A,)), "TF_CONFIG", {}, 2, "mirrored"),
        (Cluster(worker=(A, B)), "TF_CONFIG", {}, 2, "multi_worker_mirrored"),
        (Cluster(worker=(A,), ps=(B,)), "TF_CONFIG", {}, 2, "parameter_server"),
        (Cluster(), "horovodrun", {}, 2, "horovod"),
        (Cluster(), "default", {table.STRATEGY_VARIABLE: "one_device"}, 2, "one_device"),
    ],
)
def test_the_number_of_gpus_selects_the_strategy_of_a_single_process(
    cluster: Cluster, source: str, environ: Mapping[str, str], num_gpus: int | None, name: str
) -> None:
    assert table.named("auto", environ, cluster, source, num_gpus).name == name


@pytest.mark.parametrize(
    ("num_gpus", "variable", "warns"),
    [(None, None, True), (0, None, False), (None, "-1", False)],
)
def test_gpus_that_tensorflow_does_not_find_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    num_gpus: int | None,
    variable: str | None,
    warns: bool,
) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(gpus, "exist", lambda *_: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)

    assert use_devices(num_gpus) == ["CPU:0"]

    assert ("warning: TensorFlow finds no GPU" in capfd.readouterr().err) is warns
