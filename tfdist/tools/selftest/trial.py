"""Runs the training of `tfdist test`, and compares the weights of its tasks with NumPy's.

try_flags(["--strategy=horovod", "--workers=2"])    # "2 tasks agree, 3e-08 from NumPy"
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tfdist.tools.selftest import problem


class TrialError(Exception):
    """A training has failed, or has not ended with the weights that it should.

    Args:
      what: what is wrong, as a sentence.
      output: what the command has printed.
    """

    def __init__(self, what: str, output: str) -> None:
        super().__init__(what)
        self.output = output


def try_flags(flags: Sequence[str], *, tolerance: float, deadline: float) -> str:
    """Trains in a temporary directory.

    Args:
      flags: those of `tfdist run`.
      tolerance: the largest accepted difference between a weight and that of NumPy.
      deadline: the seconds after which the job is ended.

    Returns:
      What `compare` returns.

    Raises:
      TrialError: the job has failed, or `compare` has.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tfdist-test-") as directory,
        tempfile.TemporaryFile("w+", errors="replace") as output,
    ):
        directories = [f"--output_dir={directory}/output", f"--result_dir={directory}"]
        script = ["-m", "tfdist.tools.selftest.script", *directories]
        try:
            # The tasks of `tfdist run` end with it.
            subprocess.run(
                [sys.executable, "-P", "-m", "tfdist", "run", *flags, *script],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=deadline,
                check=True,
            )
            return compare(*_read(Path(directory)), tolerance)
        except subprocess.TimeoutExpired:
            what = f"The job has not ended within {deadline:g} s."
        except subprocess.CalledProcessError as error:
            what = f"The job has failed with code {error.returncode}."
        except ValueError as error:
            what = str(error)
        output.seek(0)
        raise TrialError(what, output.read())


def _read(results: Path) -> tuple[Mapping[str, np.ndarray], int]:
    """The weights by task, and the number of replicas."""
    weights, replicas = {}, 1
    for path in sorted(results.glob("*.npz")):
        with np.load(path) as found:
            weights[path.stem.replace("-", ":")] = found["weights"]
            replicas = int(found["replicas"])
    return weights, replicas


def compare(weights: Mapping[str, np.ndarray], replicas: int, tolerance: float) -> str:
    """Compares the weights of the tasks with each other, and with those of NumPy.

    Args:
      weights: by task.
      replicas: how many replicas have trained.
      tolerance: the largest accepted difference between a weight and that of NumPy.

    Returns:
      What agrees, such as `2 tasks agree, 3e-08 from NumPy`.

    Raises:
      ValueError: something does not agree; the error is a sentence.
    """
    if not weights:
        raise ValueError("No task has written its weights.")
    first, *others = weights
    for other in others:
        if not np.array_equal(weights[first], weights[other]):
            raise ValueError(f"The weights of {first} and {other} differ.")
    error = np.abs(weights[first] - problem.solution(replicas)).max()
    if not error <= tolerance:  # Also if it is not a number.
        raise ValueError(
            f"The weights differ from those of NumPy by {error:.2g}; accepted: {tolerance:g}."
        )
    agree = f"{len(weights)} tasks agree, " if others else ""
    return f"{agree}{error:.0e} from NumPy"
