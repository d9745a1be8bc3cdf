"""A model whose parameters exceed the memory of any process trains in three stages."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import ROOT, launch

pytestmark = [
    pytest.mark.stacks("2.15"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="a cgroup needs root"),
]

PROGRAM = str(ROOT / "scripts" / "benchmarks" / "stages_training.py")
WIDTH, LAYERS = 4096, 30
PARAMETER_BYTES = 4 * WIDTH * WIDTH * LAYERS
# The parameters and gradients of a stage take 1,280 MiB, and TensorFlow about 350 MiB. Keras's own
# SGD would take another 600 MiB for -rate * gradient.
LIMIT = PARAMETER_BYTES - 10 * 2**20


@pytest.fixture
def memory_group() -> Iterator[Path]:
    directory = Path("/sys/fs/cgroup/memory") / f"tfdist-{uuid.uuid4().hex[:8]}"
    try:
        directory.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of the memory controller can be created here: {error}")
    yield directory
    for own in [path for path in directory.iterdir() if path.is_dir()]:
        own.rmdir()
    directory.rmdir()


def test_a_model_that_does_not_fit_trains_over_three(tmp_path: Path, memory_group: Path) -> None:
    flags = [
        *(f"--width={WIDTH}", f"--layers={LAYERS}", "--batch_size=8", "--steps=2", "--epochs=1"),
        "--optimizer=legacy_sgd",
        *(f"--memory_group={memory_group}", f"--memory_limit={LIMIT}"),
    ]
    one = launch(tmp_path, PROGRAM, *flags, f"--output_dir={tmp_path / 'one'}", deadline=150)
    assert one.code == 128 + signal.SIGKILL, one.output

    job = ["--strategy=in_graph", "--workers=3", PROGRAM, "--stages=3"]
    three = launch(tmp_path, *job, *flags, f"--output_dir={tmp_path / 'three'}", deadline=200)
    assert three.code == 0, three.output
    assert (tmp_path / "three" / "done.json").exists()
    # Each worker has written its own variables.
    assert len(list((tmp_path / "three" / "checkpoints").glob("*.data-*-of-00003"))) == 3
