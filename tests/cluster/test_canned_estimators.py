"""Canned Estimators and sparse gradients: synchronous updates equal those of one process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import Ended, launch

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).parents[1] / "support" / "canned_estimator_program.py")
KINDS = ("embedding", "linear", "dnn", "wide_and_deep")
STRATEGIES = {
    "one_device": [],
    "mirrored": ["--num_cpu_devices=2"],
    "multi_worker_mirrored": ["--workers=2"],
    "horovod": ["--workers=2"],
    "parameter_server": ["--ps=1", "--workers=2", "--sync"],
}


def train(path: Path, strategy: str, kind: str, *flags: str) -> Ended:
    return launch(
        path / "log",
        f"--strategy={strategy}",
        *STRATEGIES[strategy],
        PROGRAM,
        f"--kind={kind}",
        f"--output_dir={path / 'output'}",
        *flags,
        deadline=150,
    )


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def trained(kind: str) -> Path:
        path = tmp_path_factory.mktemp("one")
        ended = train(path, "one_device", kind)
        assert ended.code == 0, ended.output
        return path

    return trained


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "one_device"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_equal_those_of_one_process(
    kind: str, strategy: str, one_process: Callable[[str], Path], tmp_path: Path
) -> None:
    ended = train(tmp_path, strategy, kind)
    if (strategy, kind) == ("parameter_server", "wide_and_deep"):
        assert ended.code == 2, ended.output
        assert "optimizer: received 'several synchronous optimizers in one graph'" in ended.output
        return
    assert ended.code == 0, ended.output
    found, expected = (
        np.load(path / "output" / "weights.npz") for path in (tmp_path, one_process(kind))
    )
    # With several replicas in a process, TensorFlow also saves the slots of the others.
    assert {name.removesuffix("/replica_1") for name in found.files} == set(expected.files)
    for name in expected.files:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=2e-6, err_msg=name)
    exported = list((tmp_path / "output" / "export" / "exported").glob("*/saved_model.pb"))
    assert bool(exported) == (kind != "embedding")


@pytest.mark.parametrize("strategy", ["horovod", "parameter_server"])
def test_an_optimizer_that_is_not_wrapped_is_refused(strategy: str, tmp_path: Path) -> None:
    ended = train(tmp_path, strategy, "dnn", "--nowrapped")
    assert ended.code == 2, ended.output
    assert "received 'one that was not passed to job.wrap_optimizer'" in ended.output
    assert "Traceback" not in ended.output
