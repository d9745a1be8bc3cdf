"""Custom train steps give the weights of one process under every synchronous strategy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import keras_is_3
from tests.support import train_steps
from tests.support.processes import launch

pytestmark = [
    pytest.mark.stacks("2.15", "newest", horovod=("2.15",)),
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("train steps"),
]

PROGRAM = str(Path(__file__).parents[1] / "support" / "train_steps_program.py")
STRATEGIES = {
    "multi_worker_mirrored": ["--workers=2"],
    "in_graph": ["--workers=2"],
    "horovod": ["--workers=2"],
    "parameter_server": ["--ps=1", "--chief", "--workers=2", "--sync"],
}
if not keras_is_3():
    # What they do differently does not depend on Keras.
    STRATEGIES = {"horovod": STRATEGIES["horovod"]}
#: The cases that synchronous parameter servers refuse, with what the refusal says.
NEEDS_ITS_UPDATE = {
    "in_turn": "a step that reads",
    "teacher": "a step that reads",
    "clip": "a step that assigns to",
}


def train(path: Path, strategy: str, *flags: str) -> None:
    ended = launch(
        path / "log",
        f"--strategy={strategy}",
        *flags,
        PROGRAM,
        f"--cases={','.join(train_steps.CASES)}",
        f"--result_dir={path}",
        deadline=240,
    )
    assert ended.code == 0, ended.output


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one")
    train(path, "one_device")
    return path


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_weights_equal_those_of_one_process(
    strategy: str, one_process: Path, tmp_path: Path
) -> None:
    train(tmp_path, strategy, *STRATEGIES[strategy])
    refused = NEEDS_ITS_UPDATE if strategy == "parameter_server" else {}
    assert {path.stem for path in tmp_path.glob("*.txt")} == {*refused}
    for case, reason in refused.items():
        assert reason in (tmp_path / f"{case}.txt").read_text()
    for case in {*train_steps.CASES} - {*refused}:
        found, expected = (np.load(path / f"{case}.npz") for path in (tmp_path, one_process))
        assert found.files == expected.files
        for name in found.files:
            np.testing.assert_allclose(
                found[name], expected[name], rtol=0, atol=1e-6, err_msg=f"{case}: {name}"
            )
