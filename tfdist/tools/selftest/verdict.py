"""Runs the training of `tfdist test`, and compares the weights of its tasks.

way = Way("horovod", workers=2)
verdict = try_way(way)
verdict.problem          # None, or a sentence
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tfdist.tools.selftest import problem

# float32 rounds each of the steps.
_TOLERANCE = 1e-5
_LEAST_PROGRESS = 0.05


@dataclass(frozen=True)
class Way:
    """One way of training.

    Attributes:
      strategy: its name.
      workers: the number of workers.
      ps: the number of parameter servers.
      options: other flags of `tfdist run`.
      is_exact: whether its weights are those of one process.
    """

    strategy: str
    workers: int
    ps: int = 0
    options: tuple[str, ...] = ()
    is_exact: bool = True

    @property
    def flags(self) -> list[str]:
        """The flags of `tfdist run`."""
        numbers = {"--workers": self.workers, "--ps": self.ps}
        given = [f"{name}={number}" for name, number in numbers.items() if number]
        return [f"--strategy={self.strategy}", *given, *self.options]

    def __str__(self) -> str:
        return " ".join(self.flags)


@dataclass(frozen=True)
class Verdict:
    """What came of a training.

    Attributes:
      seconds: from the start of the command to its end.
      tasks: how many tasks have weights of their own.
      error: the largest difference from the weights that NumPy computes.
      problem: what is wrong, as a sentence; None if nothing is.
      output: what the command has printed.
    """

    seconds: float
    tasks: int
    error: float
    problem: str | None
    output: str


def try_way(way: Way, *, deadline: float) -> Verdict:
    """Trains in a temporary directory.

    Args:
      way: how.
      deadline: the seconds after which the job is ended.
    """
    with tempfile.TemporaryDirectory(prefix="tfdist-test-") as directory:
        results = Path(directory, "results")
        results.mkdir()
        job = ["-m", "tfdist.tools.selftest.script", f"--output_dir={directory}/output"]
        command = [sys.executable, "-P", "-m", "tfdist", "run", *way.flags, *job]
        begun = time.monotonic()
        why, output = _run([*command, f"--result_dir={results}"], deadline)
        seconds = time.monotonic() - begun
        if why:
            return Verdict(seconds, 0, np.nan, why, output)
        weights, replicas = _read(results)
    error = max(
        (float(np.abs(each - problem.solution(replicas)).max()) for each in weights.values()),
        default=np.nan,
    )
    return Verdict(seconds, len(weights), error, problem_of(way, weights, replicas, error), output)


def _run(command: list[str], deadline: float) -> tuple[str | None, str]:
    """Why a command has not succeeded, None if it has, and its output."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        why = None
        try:
            # The tasks of `tfdist run` end with it.
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=deadline,
                check=True,
            )
        except subprocess.TimeoutExpired:
            why = f"The job has not ended within {deadline:g} s."
        except subprocess.CalledProcessError as error:
            why = f"The job has failed with code {error.returncode}."
        output.seek(0)
        return why, output.read()


def _read(results: Path) -> tuple[Mapping[str, np.ndarray], int]:
    """The weights by task, and the number of replicas."""
    weights, replicas = {}, 1
    for path in sorted(results.glob("*.npz")):
        with np.load(path) as found:
            weights[path.stem.replace("-", ":")] = found["weights"]
            replicas = int(found["replicas"])
    return weights, replicas


def problem_of(
    way: Way, weights: Mapping[str, np.ndarray], replicas: int, error: float
) -> str | None:
    """What is wrong with the weights of the tasks, as a sentence; None if nothing is.

    Args:
      way: how they were trained.
      weights: by task.
      replicas: how many replicas have trained.
      error: the largest difference from the weights that NumPy computes.
    """
    if not weights:
        return "No task has written its weights."
    first, *others = weights
    for other in others:
        if not np.array_equal(weights[first], weights[other]):
            return f"The weights of {first} and {other} differ."
    if way.is_exact and not error <= _TOLERANCE:
        return f"The weights differ from those of NumPy by {error:.2g}; accepted: {_TOLERANCE:g}."
    before = problem.loss(np.zeros_like(weights[first]), replicas)
    after = problem.loss(weights[first], replicas)
    if not after <= _LEAST_PROGRESS * before:
        return f"The loss is {after:.3g}; it was {before:.3g} before the training."
    return None
