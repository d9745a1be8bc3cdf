"""The sources of a cluster configuration, and their priority."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import tf_config
from tfdist.cluster import Cluster, Task
from tfdist.cluster.config import ClusterConfig, ClusterFlags
from tfdist.cluster.discovery import discover
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "newest")

A, B, C, D = "10.0.0.1:2222", "10.0.0.2:2222", "10.0.0.3:2222", "10.0.0.4:2222"

FLAGS = ClusterFlags(job_name="worker", task_index="0", worker_hosts=A)
TF_CONFIG = {"TF_CONFIG": tf_config("worker", 1, worker=[A, B])}
HOROVODRUN = {"HOROVOD_RANK": "2", "HOROVOD_SIZE": "3"}
NO_FLAGS = ClusterFlags()


def in_tf_config(text: str) -> ClusterConfig:
    return discover(NO_FLAGS, {"TF_CONFIG": text})


def test_a_rank_of_horovod_knows_the_number_of_ranks() -> None:
    environ = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
    assert str(discover(NO_FLAGS, environ)) == "worker:1 of 2 ranks (horovodrun)"
    assert str(discover(NO_FLAGS, {})) == "worker:0 of this process alone (default)"


@pytest.mark.parametrize(
    ("flags", "environ", "found"),
    [
        (
            FLAGS,
            {**TF_CONFIG, **HOROVODRUN},
            ClusterConfig(Cluster(worker=(A,)), Task("worker", 0), "flags"),
        ),
        (
            NO_FLAGS,
            {**TF_CONFIG, **HOROVODRUN},
            ClusterConfig(Cluster(worker=(A, B)), Task("worker", 1), "TF_CONFIG"),
        ),
        (NO_FLAGS, HOROVODRUN, ClusterConfig(Cluster(), Task("worker", 2), "horovodrun", ranks=3)),
        (NO_FLAGS, {}, ClusterConfig(Cluster(), Task("worker", 0), "default")),
    ],
    ids=lambda value: value.source if isinstance(value, ClusterConfig) else "",
)
def test_flags_override_tf_config_which_overrides_horovodrun(
    flags: ClusterFlags, environ: dict[str, str], found: ClusterConfig
) -> None:
    assert discover(flags, environ) == found


def test_a_mistake_in_one_source_is_not_hidden_by_the_next() -> None:
    with pytest.raises(UsageError, match="--task_index"):
        discover(ClusterFlags(job_name="worker", worker_hosts=A), TF_CONFIG)
    with pytest.raises(UsageError, match="TF_CONFIG"):
        discover(NO_FLAGS, {"TF_CONFIG": "{", **HOROVODRUN})


def test_the_error_for_an_invalid_rank_names_its_variable() -> None:
    with pytest.raises(UsageError, match="HOROVOD_RANK: received 'two'"):
        discover(NO_FLAGS, {"HOROVOD_RANK": "two"})


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_a_blank_tf_config_is_ignored(blank: str) -> None:
    assert in_tf_config(blank) == ClusterConfig()


@pytest.mark.parametrize(
    ("config", "cluster", "task"),
    [
        (
            {"cluster": {"master": [A], "worker": [B]}, "task": {"type": "master", "index": 0}},
            Cluster(chief=(A,), worker=(B,)),
            Task("chief", 0),
        ),
        (
            {
                "cluster": {"master": [A], "worker": [B], "ps": [C]},
                "task": {"type": "ps", "index": 0, "cloud": "none"},
                "environment": "cloud",
                "job": {"region": "eu"},
            },
            Cluster(chief=(A,), worker=(B,), ps=(C,)),
            Task("ps", 0),
        ),
        (
            {"cluster": {"chief": [A]}, "task": {"type": "master", "index": 0}},
            Cluster(chief=(A,)),
            Task("chief", 0),
        ),
        (
            {"cluster": {"worker": [A, B], "ps": []}, "task": {"type": "worker", "index": "1"}},
            Cluster(worker=(A, B)),
            Task("worker", 1),
        ),
        (
            {"cluster": {"chief": [A], "worker": [B]}, "task": {"type": "evaluator", "index": 0}},
            Cluster(chief=(A,), worker=(B,)),
            Task("evaluator", 0),
        ),
        (
            {
                "cluster": {"chief": [A], "worker": [B], "evaluator": [A, "http://x", 3]},
                "task": {"type": "evaluator", "index": 0},
            },
            Cluster(chief=(A,), worker=(B,)),
            Task("evaluator", 0),
        ),
        (
            {
                "cluster": {
                    "worker": {str(n): f"w{n}:1" for n in reversed(range(11))},
                    "chief": {"0": A},
                    "ps": [B],
                },
                "task": {"type": "worker", "index": 10},
            },
            Cluster(chief=(A,), worker=tuple(f"w{n}:1" for n in range(11)), ps=(B,)),
            Task("worker", 10),
        ),
    ],
    ids=[
        "master",
        "environment",
        "master_of_chief",
        "index_as_text",
        "evaluator",
        "evaluator_in_the_cluster",
        "maps",
    ],
)
def test_both_dialects_of_tf_config_are_read(
    config: dict[str, Any], cluster: Cluster, task: Task
) -> None:
    has_master = "master" in config["cluster"]
    assert in_tf_config(json.dumps(config)) == ClusterConfig(cluster, task, "TF_CONFIG", has_master)


def test_an_evaluator_with_flags_needs_no_cluster() -> None:
    found = discover(ClusterFlags(job_name="evaluator", task_index="0"), {})

    assert found == ClusterConfig(Cluster(), Task("evaluator", 0), "flags")


def test_flags_accept_spaces_after_commas() -> None:
    flags = ClusterFlags(
        job_name="ps",
        task_index="0",
        chief_hosts=A,
        worker_hosts=f"{B}, {C}",
        ps_hosts=D,
    )

    assert discover(flags, {}).cluster == Cluster(chief=(A,), worker=(B, C), ps=(D,))
