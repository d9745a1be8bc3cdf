"""Workers of asynchronous parameter servers that take the shards of the data one after another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import ROOT, launch

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(150)]

TRAINING = str(ROOT / "scripts" / "benchmarks" / "shards_training.py")


def test_each_gradient_is_applied_once(tmp_path: Path) -> None:
    """Also with SGD of Keras 2, whose workers share a momentum that they do not use."""
    examples, epochs = 2_000, 3
    flags = ["--data_shards=6", f"--examples={examples}", f"--epochs={epochs}", "--work=0"]
    ended = launch(
        tmp_path,
        *["--strategy=parameter_server", "--ps=2", "--workers=2", "--chief", TRAINING, *flags],
        *[f"--output_dir={tmp_path / 'output'}", f"--result={tmp_path / 'counts.npz'}"],
        deadline=120,
    )
    assert ended.code == 0, ended.output
    counts = np.load(tmp_path / "counts.npz")["counts"]
    assert counts.shape == (epochs, examples)
    np.testing.assert_array_equal(counts, 1)
    lines = (tmp_path / "output" / "metrics.jsonl").read_text().splitlines()
    assert [sum(json.loads(line)["steps_by_worker"].values()) for line in lines] == [42] * epochs
