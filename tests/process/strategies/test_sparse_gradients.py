"""A table's gradients, gathered or summed, give the weights of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(300)]

PROGRAM = str(Path(__file__).parents[2] / "support" / "sparse_program.py")


def train(directory: Path, *options: str) -> list[np.ndarray]:
    output = directory / "output"
    ended = launch(directory / "log", *options, PROGRAM, f"--output_dir={output}", deadline=120)
    assert ended.code == 0, ended.output
    weights = np.load(output / "weights.npz")
    return [weights[name] for name in weights.files]


def test_weights_equal_those_of_one_process(tmp_path: Path) -> None:
    """With three replicas, the rows of a batch are gathered or are more than the table."""
    expected = train(tmp_path / "one")
    for strategy in ("multi_worker_mirrored", "horovod"):
        found = train(tmp_path / strategy, "--workers=3", f"--strategy={strategy}")
        for weight, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(weight, other, atol=1e-6, err_msg=strategy)
