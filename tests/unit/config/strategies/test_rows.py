"""The options of each strategy: what is accepted, and the line for what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tfdist.cluster import Cluster
from tfdist.config.options import Options
from tfdist.config.strategies import table
from tfdist.config.strategies.rows import ParameterServerOptions
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "newest")

# The tasks of a job with parameter servers for Keras: the chief coordinates three workers.
PS = Cluster(chief=("c:1",), worker=("w:1", "w:2", "w:3"), ps=("p:1",))
WORKERS = Cluster(worker=("w:1", "w:2", "w:3", "w:4"))


def options(
    name: str, cluster: Cluster = WORKERS, *, for_estimators: bool = False, **given: Any
) -> Options:
    return table.options_of(table.row(name), given, cluster, for_estimators=for_estimators)


@pytest.mark.parametrize(
    ("strategy", "given", "cluster", "message"),
    [
        (
            "parameter_server",
            {"sync": True, "replicas_to_aggregate": 4},
            PS,
            "--replicas_to_aggregate: received 4; accepted: 1 to 3 with --sync",
        ),
        (
            "parameter_server",
            {"sync": True, "replicas_to_aggregate": 0},
            PS,
            "--replicas_to_aggregate: received 0; accepted: at least 1",
        ),
        (
            "parameter_server",
            {"replicas_to_aggregate": 2},
            PS,
            "--replicas_to_aggregate: received '2 without --sync'; accepted: 1 to 3",
        ),
        (
            "parameter_server",
            {"partition_bytes": 0},
            PS,
            "--partition_bytes: received 0; accepted: at least 1",
        ),
        (
            "parameter_server",
            {"partition_bytes": 64, "variable_partitions": 2},
            PS,
            "--partition_bytes: received 64; accepted: not with --variable_partitions",
        ),
        ("parameter_server", {}, Cluster(chief=("c:1",), ps=("p:1",)), "cluster.worker: received"),
        (
            "parameter_server",
            {"sync": True, "data_shards": 6},
            PS,
            "--data_shards: received 6; accepted: not with --sync",
        ),
        (
            "parameter_server",
            {"data_shards": 2},
            PS,
            "--data_shards: received 2; accepted: at least 3, one for each worker",
        ),
        (
            "parameter_server",
            {"sync": True, "min_workers": 2},
            PS,
            "--min_workers: received 2; accepted: not with --sync",
        ),
        (
            "parameter_server",
            {"min_workers": 2},
            Cluster(worker=("w:1", "w:2"), ps=("p:1",)),
            "--min_workers: received 2; accepted: with a chief",
        ),
        (
            "parameter_server",
            {"min_workers": 4},
            PS,
            "--min_workers: received 4; accepted: at most 3, the number of workers in the cluster",
        ),
        ("in_graph", {"stages": 3}, WORKERS, "--stages: received '3 with 4 workers'; accepted: 1"),
        ("in_graph", {"stages": 8}, WORKERS, "--stages: received '8 with 4 workers'; accepted: 1"),
        ("in_graph", {"stages": 2}, Cluster(), "--stages: received '2 with 1 worker'; accepted: 1"),
        (
            "in_graph",
            {"stages": 2, "microbatches": 2, "recompute": True},
            WORKERS,
            "--recompute: received '2 microbatches in 2 stages'; accepted: more microbatches",
        ),
        ("in_graph", {"microbatches": 0}, WORKERS, "--microbatches: received 0; accepted: at le"),
        (
            "multi_worker_mirrored",
            {"all_reduce": "tree"},
            WORKERS,
            "--all_reduce: received 'tree'; accepted: auto, ring, nccl",
        ),
        (
            "multi_worker_mirrored",
            {"gradient_dtype": "int8"},
            WORKERS,
            "--gradient_dtype: received 'int8'; accepted: bfloat16, float16",
        ),
        (
            "horovod",
            {"gradient_dtype": "bfloat16"},
            WORKERS,
            "--gradient_dtype: received 'bfloat16'; accepted: float16",
        ),
        (
            "horovod",
            {"gradient_dtype": "float16", "sync_period": 2},
            WORKERS,
            "--gradient_dtype: received 'float16'; accepted: not with --sync_period",
        ),
        (
            "multi_worker_mirrored",
            {"outer_momentum": 0.9},
            WORKERS,
            "--outer_momentum: received 0.9; accepted: only together with --sync_period",
        ),
        (
            "horovod",
            {"outer_learning_rate": 0.5},
            WORKERS,
            "--outer_learning_rate: received 0.5; accepted: only together with --sync_period",
        ),
        (
            "horovod",
            {"sync_period": 2, "outer_momentum": 1.5},
            WORKERS,
            "--outer_momentum: received 1.5; accepted: at least 0 and at most 1",
        ),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(
    strategy: str, given: dict[str, Any], cluster: Cluster, message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        options(strategy, cluster, **given)


ACCEPTED_BY: dict[str, tuple[Any, set[str]]] = {
    "all_reduce": ("ring", {"multi_worker_mirrored"}),
    "data_shards": (6, {"parameter_server"}),
    "gradient_dtype": ("float16", {"multi_worker_mirrored", "horovod"}),
    "min_workers": (2, {"parameter_server"}),
    "num_cpu_devices": (2, {"mirrored", "central_storage"}),
    "pack_transfers": (False, {"parameter_server"}),
    "partition_bytes": (1 << 20, {"parameter_server"}),
    "stages": (2, {"in_graph"}),
    "sync": (True, {"parameter_server"}),
    "sync_period": (2, {"multi_worker_mirrored", "horovod"}),
    "variable_partitions": (2, {"parameter_server"}),
}


@pytest.mark.parametrize("flag", ACCEPTED_BY)
@pytest.mark.parametrize("name", list(table.rows()))
def test_a_flag_is_accepted_by_its_strategies_and_refused_by_the_others(
    name: str, flag: str
) -> None:
    value, names = ACCEPTED_BY[flag]
    cluster = PS if table.row(name).uses_ps else WORKERS
    if name in names:
        assert getattr(options(name, cluster, **{flag: value}), flag) == value
        return
    with pytest.raises(UsageError) as error:
        options(name, cluster, **{flag: value})
    assert (error.value.field, error.value.received) == (f"--{flag}", value)
    assert error.value.accepted == f"not supported with --strategy={name}"
    assert all(other in error.value.remedy for other in names)


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [
        ("horovod", "sync_period", 2),
        ("multi_worker_mirrored", "sync_period", 2),
        ("parameter_server", "data_shards", 6),
        ("parameter_server", "min_workers", 2),
        ("parameter_server", "pack_transfers", False),
        ("parameter_server", "partition_bytes", 64),
        ("parameter_server", "variable_partitions", 2),
    ],
)
def test_a_flag_for_keras_is_refused_for_estimators(name: str, flag: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"--{flag}: .* not supported for Estimators"):
        options(name, PS, for_estimators=True, **{flag: value})


@pytest.mark.parametrize("name", ["central_storage", "in_graph"])
def test_a_strategy_without_estimators_refuses_them(name: str) -> None:
    with pytest.raises(UsageError, match=f"--strategy: received '{name} for an Estimator'"):
        options(name, for_estimators=True)


@pytest.mark.parametrize(
    ("given", "replicas"),
    [
        ({}, None),
        ({"sync": False}, None),
        ({"sync": True}, 3),
        ({"sync": True, "replicas_to_aggregate": 1}, 1),
        ({"sync": True, "replicas_to_aggregate": 3}, 3),
    ],
)
def test_the_number_of_gradients_per_update(given: dict[str, Any], replicas: int | None) -> None:
    found = options("parameter_server", PS, **given)
    assert isinstance(found, ParameterServerOptions)
    assert found.gradients_per_update(PS) == replicas


def test_the_chief_of_an_estimators_job_computes_gradients() -> None:
    given = {"sync": True, "replicas_to_aggregate": 4}
    options("parameter_server", PS, for_estimators=True, **given)
    # A launcher does not know which of both the script has.
    table.check_flags(table.row("parameter_server"), given, None, PS)
    with pytest.raises(UsageError, match="accepted: 1 to 3 with --sync"):
        table.check_flags(
            table.row("parameter_server"), {**given, "replicas_to_aggregate": 5}, None, PS
        )


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_divisor_of_the_workers_is_accepted(stages: int) -> None:
    assert getattr(options("in_graph", stages=stages), "stages") == stages  # noqa: B009


def test_local_sgd_has_a_class_of_its_own() -> None:
    row = table.row("multi_worker_mirrored")
    assert "LocalSGD" in row.strategy_path(options(row.name, sync_period=2))
    assert "LocalSGD" not in row.strategy_path(options(row.name))


def test_every_option_has_a_help_and_a_default_within_its_bounds() -> None:
    for row in table.rows().values():
        for for_estimators in (False, True):
            options_class = row.way(for_estimators).options
            options_class()
            assert all(option.help for option in options_class.defined().values())
