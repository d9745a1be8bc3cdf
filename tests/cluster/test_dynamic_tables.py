"""Dynamic tables over restarts: on other numbers of parameter servers, in parts, in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import ROOT, launch

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(300)]

PROGRAM = str(ROOT / "tests" / "support" / "dynamic_program.py")
SYNC = ["--strategy=parameter_server", "--workers=2", PROGRAM, "--sync"]


def train(path: Path, output: str, epochs: int, *arguments: str) -> dict[str, np.ndarray]:
    """Trains until the end of an epoch; returns the ids and the rows of the table."""
    result = path / f"{output}-{epochs}.npz"
    flags = [f"--output_dir={path / output}", f"--result={result}", f"--epochs={epochs}"]
    ended = launch(path / f"logs-{output}-{epochs}", *arguments, *flags, deadline=120)
    assert ended.code == 0, ended.output
    return dict(np.load(result))


def test_a_training_on_one_to_three_ps_is_that_of_one_process(tmp_path: Path) -> None:
    expected = train(tmp_path, "one", 4, PROGRAM)
    for epochs, ps, partition in ((1, 1, ""), (2, 2, "--partition_bytes=128"), (3, 3, "")):
        flags = filter(None, [f"--ps={ps}", *SYNC, partition])
        train(tmp_path, "resumed", epochs, *flags)
    found = train(tmp_path, "resumed", 4, PROGRAM)
    assert len(np.unique(expected["ids"])) == 24
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=2e-6, err_msg=name)
