"""Asynchronous parameter servers report how stale gradients are, and where a step's time goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(180)]

PROGRAM = str(Path(__file__).parents[1] / "support" / "staleness_program.py")


def test_the_reported_staleness_is_the_measured_one(tmp_path: Path) -> None:
    job = ["--strategy=parameter_server", "--ps=1", "--workers=2", "--chief"]
    ended = launch(tmp_path, *job, PROGRAM, f"--output_dir={tmp_path / 'output'}", deadline=150)
    assert ended.code == 0, ended.output

    run = EventAccumulator(str(tmp_path / "output/logs/train"))
    run.Reload()
    tags = [tag for tag in run.Tags()["tensors"] if tag.startswith("epoch_")]
    found = {tag: float(tf.make_ndarray(run.Tensors(tag)[1].tensor_proto)) for tag in tags}
    _, line = (tmp_path / "output/metrics.jsonl").read_text().splitlines()
    # The time in which a step waits for its weights is in the reported one, and not in the other.
    assert 0.6 < found["epoch_staleness/mean"] / json.loads(line)["stale"] < 1.7
    # Worker 0 is slow.
    assert found["epoch_staleness/max"] > 1.5 * found["epoch_staleness/mean"]
    parts = [found[f"epoch_seconds/{name}"] for name in ("input", "communication", "compute")]
    assert sum(parts) == pytest.approx(found["epoch_seconds/step"], rel=1e-3)
    assert all(part >= 0 for part in parts)
    # The program computes for most of a step.
    assert parts[2] > 0.3 * sum(parts)
