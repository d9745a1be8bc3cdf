"""The table of strategies: its rows, those of installed packages, and the checks of a job."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from tests.conftest import tf_config
from tfdist.config.flags import JobFlags
from tfdist.config.role import TaskRole, find_role
from tfdist.config.strategies import StrategySpec, register, table
from tfdist.errors import UsageError
from tfdist.process import plugins

pytestmark = pytest.mark.stacks("2.15", "newest")

# The first one is bound for a moment, also by the other processes of the tests.
_PORT = 101 + 2 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
A, B = f"127.0.0.1:{_PORT}", f"127.0.0.1:{_PORT + 1}"


def role(*, for_estimators: bool = False, cluster: str | None = None, **given: Any) -> TaskRole:
    environ = {} if cluster is None else {"TF_CONFIG": cluster}
    return find_role(JobFlags.of(**given), environ, for_estimators=for_estimators)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, StrategySpec]:
    """The table, whose changes are undone after the test."""
    rows = dict(table.rows())
    monkeypatch.setattr(table._table, "_rows", rows)
    return rows


def test_a_name_is_registered_once(rows: dict[str, StrategySpec]) -> None:
    register(StrategySpec("scaled", "scaled:Scaled"))
    assert table.row("scaled").strategy == "scaled:Scaled"
    with pytest.raises(ValueError, match="'scaled' is already in the table"):
        register(StrategySpec("scaled", "scaled:Scaled"))


def test_a_broken_package_leaves_the_other_strategies(
    rows: dict[str, StrategySpec],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    point = EntryPoint("broken", "no_such_module:ROW", table.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    monkeypatch.setattr(table._table, "_has_installed", False)
    assert set(table.rows()) == set(rows)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tfdist: warning: the strategy broken of no_such_module:ROW is not av")


@pytest.mark.parametrize("strategy", ["one_device", "horovod"])
def test_several_gpus_are_refused_where_a_task_uses_one(strategy: str) -> None:
    with pytest.raises(UsageError) as error:
        role(strategy=strategy, num_gpus=2)
    assert (error.value.field, error.value.received) == ("--num_gpus", 2)
    assert error.value.accepted == f"0 or 1 under {strategy}"


def test_several_gpus_are_refused_for_the_workers_of_an_estimator() -> None:
    cluster = tf_config("worker", 0, worker=[A], ps=[B])
    with pytest.raises(UsageError) as error:
        role(cluster=cluster, num_gpus=2, for_estimators=True)
    assert str(error.value) == (
        "--num_gpus: received 2; accepted: 0 or 1 under parameter_server, for Estimators and "
        "sessions. Start one worker per GPU, and select its GPU with CUDA_VISIBLE_DEVICES."
    )
    assert role(cluster=cluster, num_gpus=2).flags.num_gpus == 2


def test_flags_of_keras_models_are_refused_for_estimators() -> None:
    with pytest.raises(UsageError, match="--jit_compile: received True; accepted: only with Keras"):
        role(jit_compile=True, for_estimators=True)
    with pytest.raises(UsageError, match="--resume_hyperparameters: received 'script'; accepted: "):
        role(resume_hyperparameters="script", for_estimators=True)
    with pytest.raises(UsageError, match="--export_steps: received 5; accepted: "):
        role(export_steps=5, for_estimators=True)


def test_mixed_precision_is_refused_for_estimators() -> None:
    assert role(precision="float32", for_estimators=True).flags.precision == "float32"
    with pytest.raises(UsageError, match="--precision: received 'auto'; accepted: only with"):
        role(precision="auto", for_estimators=True)


def test_tasks_with_different_precisions_do_not_train_together() -> None:
    assert role().variant == "one_device"
    assert role(precision="auto").variant == "one_device --precision=auto"


@pytest.mark.parametrize("name", ["one_device", "mirrored", "central_storage"])
def test_a_strategy_without_other_tasks_refuses_a_heartbeat_timeout(name: str) -> None:
    with pytest.raises(UsageError, match=f"not supported with --strategy={name}"):
        role(strategy=name, heartbeat_timeout=5.0)


@pytest.mark.parametrize("for_estimators", [False, True])
def test_the_heartbeat_timeout_of_several_tasks(for_estimators: bool) -> None:
    cluster = tf_config("worker", 0, worker=[A], ps=[B])
    found = role(cluster=cluster, heartbeat_timeout=5.0, for_estimators=for_estimators)
    assert found.settings.heartbeat_timeout == 5.0
    assert role(cluster=cluster).settings.heartbeat_timeout == 30.0


def test_tasks_with_other_periods_do_not_train_together() -> None:
    cluster = tf_config("worker", 0, worker=[A, B])
    assert role(cluster=cluster).variant == "multi_worker_mirrored"
    assert role(cluster=cluster, sync_period=5).variant == "multi_worker_mirrored --sync_period=5"
    assert role(cluster=cluster, all_reduce="ring").variant == "multi_worker_mirrored"


def test_an_evaluator_has_none_of_the_options() -> None:
    evaluator = tf_config("evaluator", 0, chief=[A], worker=[B])
    found = role(cluster=evaluator, strategy="multi_worker_mirrored", all_reduce="ring")
    assert found.own_spec.name == "one_device"
    assert found.options.defined() == {}
    assert found.settings.heartbeat_timeout == 30.0
