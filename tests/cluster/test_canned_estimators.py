"""Canned Estimators and sparse gradients: synchronous updates equal those of one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import Ended, launch

pytestmark = [
    pytest.mark.stacks("2.15"),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("canned Estimators"),
]

PROGRAM = str(Path(__file__).parents[1] / "support" / "canned_estimator_program.py")
KINDS = ("embedding", "linear", "wide_and_deep")
STRATEGIES = {
    "one_device": [],
    "multi_worker_mirrored": ["--workers=2"],
    "horovod": ["--workers=2"],
    "parameter_server": ["--ps=1", "--workers=2", "--sync"],
}
JOBS = [
    # The wide and deep model consists of the two others. With parameter servers a job trains one
    # Estimator. Under multi_worker_mirrored the chief's evaluation uses up numbers of collectives,
    # and those of a second Estimator would differ.
    ("horovod", ("wide_and_deep",)),
    ("multi_worker_mirrored", ("wide_and_deep",)),
    *(("parameter_server", (kind,)) for kind in ("embedding", "linear", "wide_and_deep")),
]


def train(path: Path, strategy: str, kinds: Sequence[str], *flags: str) -> Ended:
    return launch(
        path / "log",
        f"--strategy={strategy}",
        *STRATEGIES[strategy],
        PROGRAM,
        *(f"--kind={kind}" for kind in kinds),
        f"--output_dir={path}",
        *flags,
        deadline=220,
    )


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one")
    ended = train(path, "one_device", KINDS)
    assert ended.code == 0, ended.output
    return path


@pytest.mark.parametrize(("strategy", "kinds"), JOBS)
def test_weights_equal_those_of_one_process(
    strategy: str, kinds: Sequence[str], one_process: Path, tmp_path: Path
) -> None:
    ended = train(tmp_path, strategy, kinds)
    if (strategy, kinds) == ("parameter_server", ("wide_and_deep",)):
        assert ended.code == 2, ended.output
        assert "optimizer: received 'several synchronous optimizers in one graph'" in ended.output
        return
    assert ended.code == 0, ended.output
    for kind in kinds:
        found, expected = (np.load(path / kind / "weights.npz") for path in (tmp_path, one_process))
        assert set(found.files) == set(expected.files)
        for name in expected.files:
            np.testing.assert_allclose(
                found[name], expected[name], rtol=0, atol=2e-6, err_msg=f"{kind}: {name}"
            )
        exported = list((tmp_path / kind / "export" / "exported").glob("*/saved_model.pb"))
        assert bool(exported) == (kind != "embedding")
