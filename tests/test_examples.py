"""The examples answer a mistake in one line, with exit code 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.data import cifar10

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("digits")
    cifar10.write(directory, "digits")
    return directory


@pytest.mark.parametrize("script", ["cifar10_main.py", "cifar10_estimator_main.py"])
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--num_layers=9"], "--num_layers: received 9"),
        (["--decay_epochs=3,soon"], "--decay_epochs"),
        (["--train-batch-size=many"], "--train_batch_size"),
        (["--data_dir=nowhere"], "--data_dir: received 'nowhere'"),
        (
            ["--strategy=mirrored", "--num-cpu-devices=2", "--train_batch_size=5"],
            "batch size of a task: received 5; accepted: a multiple of 2",
        ),
    ],
)
def test_a_mistake_is_answered_with_code_2(
    tmp_path: Path, digits: Path, script: str, flags: list[str], named: str
) -> None:
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "examples" / script),
            f"--data_dir={digits}",
            f"--output_dir={tmp_path / 'output'}",
            *flags,
        ],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
    )
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("tfdist: error: "))
    assert named in line
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "output").exists(), "nothing should be written"
