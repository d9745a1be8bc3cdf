"""One task ends `fit` in all; then the chief may use the model alone, without the other tasks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.15", "newest", horovod=("newest",)), pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).parents[1] / "support" / "after_fit_program.py")


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_the_chief_predicts_evaluates_and_saves_alone(strategy: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    flags = [f"--strategy={strategy}", "--workers=2"]
    ended = launch(tmp_path / "log", *flags, PROGRAM, f"--output_dir={output}", deadline=150)
    assert ended.code == 0, ended.output
    assert re.search(
        "stopping after step [34] of epoch 2: worker:1 set stop_training", ended.output
    )
    assert json.loads((output / "done.json").read_text())["finished"] == 2

    predictions = np.load(output / "predictions.npz")
    for name in predictions.files:
        np.testing.assert_allclose(
            predictions[name], predictions["exported"], atol=1e-6, err_msg=name
        )
    metrics = json.loads((output / "metrics.json").read_text())
    assert {"accuracy", "activity", "auc", "loss"} == set(metrics["alone"])
    assert metrics["alone"] == pytest.approx(metrics["all"], abs=1e-6)
