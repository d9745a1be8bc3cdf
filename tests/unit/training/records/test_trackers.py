"""What a tracker does that fails; `tests/cluster/test_trackers.py` runs jobs with real ones."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest

from tfdist.config.flags import TRACKERS, JobFlags
from tfdist.errors import UsageError
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.records import trackers
from tfdist.training.records.trackers import Trackers

pytestmark = pytest.mark.stacks("2.15", "newest")


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OutputDirectory:
    """An output directory; the store is `mlflow.db` beside it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "output").mkdir()
    return OutputDirectory(tmp_path / "output")


def only_run() -> mlflow.entities.Run:
    (run,) = mlflow.MlflowClient().search_runs(["0"], "attributes.status != 'FAILED'")
    return run


def test_the_flag_has_the_names_of_the_trackers() -> None:
    assert set(TRACKERS) == set(trackers.KINDS)
    assert JobFlags.of(tracker="wandb, mlflow,wandb").trackers == ["wandb", "mlflow"]
    with pytest.raises(UsageError, match=r"--tracker: received 'mlfow'; accepted: mlflow, wandb"):
        JobFlags.of(tracker="mlfow")


def test_without_trackers_nothing_is_written(output: OutputDirectory) -> None:
    found = Trackers([], output, {})
    found.log({"loss": 1.0}, 1)
    found.finish()
    assert not output.trackers.exists()


def test_names_and_values_that_mlflow_does_not_accept_are_changed(output: OutputDirectory) -> None:
    found = Trackers(["mlflow"], output, {"flags": {"list": "x" * 10_000, "of": 2}})
    found.log({"loss<1>": 1.0, "nan": float("nan")}, 3)
    found.finish()
    run = only_run()
    assert run.data.metrics["loss_1_"] == 1.0
    assert run.data.params == {"flags.list": "x" * 6000, "flags.of": "2"}


def test_a_run_that_is_gone_is_replaced(
    output: OutputDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    client = mlflow.MlflowClient()
    deleted = client.create_run("0").info.run_id
    client.delete_run(deleted)
    for gone in ("0" * 32, deleted):
        output.trackers.write_text(json.dumps({"mlflow": gone, "wandb": "kept"}))
        Trackers(["mlflow"], output, {}).finish()
        assert f"run {gone} of trackers.json is gone" in capsys.readouterr().err
        written = json.loads(output.trackers.read_text())
        assert written == {"mlflow": only_run().info.run_id, "wandb": "kept"}
        client.delete_run(written["mlflow"])


def test_a_tracker_that_cannot_start_is_a_usage_error(
    output: OutputDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(UsageError, match="Set MLFLOW_TRACKING_URI to a store that works"):
        Trackers(["mlflow"], output, {})
    assert not output.trackers.exists()


def test_a_tracker_that_fails_later_does_not_end_the_training(
    output: OutputDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Trackers(["mlflow"], output, {})
    output.path.with_name("mlflow.db").write_bytes(b"no database" * 1000)
    found.log({"loss": 1.0}, 1)
    found.finish()
    found.log({"loss": 1.0}, 2)
    found.finish()
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning: mlflow" in line]
    assert len(warnings) == 1
    assert "failed, and the training goes on without it" in warnings[0]


def test_the_experiment_is_that_of_mlflows_variable(
    output: OutputDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "digits")
    for _ in range(2):
        Trackers(["mlflow"], output, {}).finish()
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
