"""Jobs that train the models of `split_program.py`, and comparisons of their weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.support.processes import Ended, launch

PROGRAM = str(Path(__file__).with_name("split_program.py"))


def files(path: Path) -> list[str]:
    """The flags of the program for its files below `path`."""
    return [f"--output_dir={path / 'output'}", f"--weights={path / 'weights.npz'}"]


def train(path: Path, *job: str, flags: Sequence[str] = ()) -> Ended:
    """Trains with the options of `tfdist run` and the flags of the program."""
    ended = launch(path, *job, PROGRAM, *flags, *files(path), deadline=90)
    assert ended.code == 0, ended.output
    return ended


def weights(path: Path) -> list[np.ndarray]:
    """The weights that a job with the files of `path` has ended with."""
    return list(np.load(path / "weights.npz").values())


def assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Checks that weights differ by no more than rounding."""
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=0, atol=1e-6)


def places(kind: str, output: str) -> list[tuple[str, int]]:
    """The shape of each variable of a kind that a job has printed, and the worker that has it."""
    found = re.findall(rf"{kind} (\S+) /job:worker/replica:0/task:(\d+)/", output)
    return [(shape, int(worker)) for shape, worker in found]
