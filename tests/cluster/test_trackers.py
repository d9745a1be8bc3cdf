"""`--tracker`: one run per job in MLflow and Weights & Biases, over restarts."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.estimator_jobs import PROGRAM as ESTIMATOR_PROGRAM
from tests.support.processes import (
    PROGRAM,
    OnceSaved,
    Processes,
    Tasks,
    directories,
    run_by_hand,
    tasks_of,
)

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(240)]


def job(path: Path, *arguments: str) -> Tasks:
    """A `tfdist run` whose trackers write below `path`, without a network."""
    local = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{path}/mlflow.db",
        "WANDB_DIR": str(path),
        "WANDB_MODE": "offline",
    }
    return {"tfdist": ([sys.executable, "-m", "tfdist", "run", *arguments], local)}


def history(path: Path, name: str) -> tuple[Any, dict[int, float]]:
    """The only run in the store, and one of its metrics by step."""
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}/mlflow.db")
    (run,) = client.search_runs(["0"])
    assert run.info.run_id == json.loads((path / "output/trackers.json").read_text())["mlflow"]
    return run, {each.step: each.value for each in client.get_metric_history(run.info.run_id, name)}


def test_a_restarted_job_goes_on_in_its_runs(tmp_path: Path) -> None:
    def kill_chief(processes: Processes) -> None:
        os.kill(tasks_of(processes["tfdist"].pid)[0].pid, signal.SIGKILL)

    flags = ["--max_restarts=1", "--workers=2", "--strategy=multi_worker_mirrored"]
    arguments = ["--epochs=4", "--rest=1", *directories(tmp_path)]
    tasks = job(tmp_path, *flags, "--tracker=mlflow,wandb", PROGRAM, *arguments)
    watch = OnceSaved(tmp_path, 2, kill_chief)
    ended = run_by_hand(tmp_path, tasks, deadline=200, watch=watch)["tfdist"]
    assert ended.code == 0, ended.output
    assert "restart 1 of 1" in ended.output

    output = tmp_path / "output"
    run, losses = history(tmp_path, "loss")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    assert losses == {line["step"]: pytest.approx(line["loss"]) for line in lines}
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "output"
    assert run.data.params["strategy"] == "multi_worker_mirrored"
    assert run.data.params["tasks.worker:1"].startswith("127.0.0.1:")
    assert run.data.metrics["epoch"] == 4

    runs = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    name = json.loads((output / "trackers.json").read_text())["wandb"]
    assert [each.name for each in runs] == [f"run-{name}.wandb"] * 2
    assert b"examples_per_second" in runs[1].read_bytes()
    left = [each for each in psutil.process_iter(["name"]) if each.info["name"] == "wandb-core"]
    assert not [each for each in left if str(tmp_path) in each.environ().values()]


def test_an_estimator_sends_its_loss(tmp_path: Path) -> None:
    flags = ["--strategy=parameter_server", "--ps=1", "--workers=2", "--tracker=mlflow"]
    arguments = ["--step_seconds=0.02", "--max_steps=200", *directories(tmp_path)]
    tasks = job(tmp_path, *flags, ESTIMATOR_PROGRAM, *arguments)
    ended = run_by_hand(tmp_path, tasks, deadline=100)["tfdist"]
    assert ended.code == 0, ended.output
    run, losses = history(tmp_path, "loss")
    assert run.info.status == "FINISHED"
    logs = (
        [json.loads(line) for line in (tmp_path / "output" / name).read_text().splitlines()]
        for name in ("metrics.jsonl", "events.jsonl")
    )
    metrics, events = logs
    assert losses == {line["step"]: pytest.approx(line["loss"]) for line in metrics}
    # Each asynchronous task can make a step beyond the last one.
    assert 0 < max(losses) <= 200 + 3
    assert all(value >= 0 for value in losses.values())
    assert [(event["event"], event["step"] >= 200) for event in events] == [
        ("start", False),
        ("complete", True),
    ]
