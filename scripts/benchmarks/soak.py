#!/usr/bin/env python
"""Injects random faults into one job after the other; each must give the expected weights.

    scripts/benchmarks/soak.py --seconds=3600                # an hour over all strategies
    scripts/benchmarks/soak.py --seconds=600 --every=60 --strategy=horovod --fault=kill

For each strategy, a job runs undisturbed first. Then jobs run under `tfdist run --max_restarts`,
and one fault happens at a random time in each period of `--every` seconds; `soak_job.FAULTS` lists
them. A full disk and a partition need root. At the end, prints a table of the faults: how many
there were, how many the jobs survived, and the seconds from the end of the fault until all training
tasks have made a step again, to a second. A job survives if it ends with code 0 and bitwise the
weights of the undisturbed one (under asynchronous parameter servers, with finite ones). The
effective time of a strategy is the time that its steps take undisturbed, divided by the time from
the start of its first disturbed job to the end of its last. The exit code is 1 if a job does not
survive.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.soak_job import (  # noqa: E402
    FAULTS,
    OF_ROOT,
    STRATEGIES,
    SYNCHRONOUS,
    Job,
)

_DISK_BYTES = 64 << 20


@dataclass
class Tally:
    """What has happened for one kind of fault."""

    injected: int = 0
    survived: int = 0
    seconds: list[float] = field(default_factory=list)


@dataclass
class Soak:
    """Runs the jobs of one strategy.

    Attributes:
      strategy: the name in `STRATEGIES`.
      epochs: the number of epochs of a job.
      save_steps: steps between checkpoints.
      every: seconds of a period with one fault.
      faults: the names of the faults.
      rng: chooses them.
      tally: what has happened, by fault.
    """

    strategy: str
    epochs: int
    save_steps: int
    every: float
    faults: Sequence[str]
    rng: random.Random
    tally: dict[str, Tally]

    def run(self, seconds: float) -> float:
        """Runs jobs for some time, and until there was a fault; returns the effective time.

        Raises:
          RuntimeError: a job has not survived.
        """
        with directory() as path:
            job = self._start(path)
            seconds_per_step = self._seconds_per_step(job)
            expected = self._end(job, None)
        begin = time.monotonic()
        steps = faults = 0
        # A short job may end before its first fault.
        while not faults or time.monotonic() - begin < seconds:
            with directory() as path:
                job = self._start(path)
                injected = self._disturb(job)
                self._end(job, expected)
                steps += max(job.checkpoints())
                faults += len(injected)
                for fault in injected:
                    self.tally[fault].survived += 1
        return steps * seconds_per_step / (time.monotonic() - begin)

    def _start(self, path: Path) -> Job:
        return Job(path, self.strategy, self.epochs, self.save_steps)

    def _seconds_per_step(self, job: Job) -> float:
        """Waits for the end of an undisturbed job, and measures its steps."""
        seen: dict[int, float] = {}
        while job.process.poll() is None:
            for step, path in job.checkpoints().items():
                if step not in seen and path.exists():
                    seen[step] = path.stat().st_mtime
            time.sleep(0.1)
        first, last = min(seen), max(seen)
        return (seen[last] - seen[first]) / (last - first)

    def _end(self, job: Job, expected: np.ndarray | None) -> np.ndarray:
        code = job.process.wait()
        if code:
            raise RuntimeError(f"{job.log()}\n{self.strategy}: the job ended with code {code}")
        weights = job.weights()
        if expected is None:
            return weights
        is_right = np.array_equal(weights, expected)
        if self.strategy not in SYNCHRONOUS:
            is_right = bool(np.isfinite(weights).all())
        if not is_right:
            raise RuntimeError(f"{job.log()}\n{self.strategy}: the weights are wrong")
        return weights

    def _disturb(self, job: Job) -> list[str]:
        """Injects faults until the job ends; returns their names."""
        injected: list[str] = []
        if job.wait_for_step(0.0) is None:
            return injected
        trainers = len(job.states())
        while True:
            due = time.monotonic() + self.every
            if not job.runs_for(self.rng.uniform(0.0, self.every)):
                return injected
            if job.is_complete():
                return injected
            fault = self.rng.choice(self.faults)
            try:
                FAULTS[fault](job, self.rng)
            except (psutil.Error, FileNotFoundError, subprocess.CalledProcessError):
                continue  # The task has ended, or the job.
            begin = time.time()
            injected.append(fault)
            tally = self.tally[fault]
            tally.injected += 1
            if (seconds := job.wait_for_step(begin, trainers)) is not None:
                tally.seconds.append(seconds)
            after = "the job has ended" if seconds is None else f"next step after {seconds:.1f} s"
            print(f"{self.strategy}: {fault}: {after}", flush=True)
            job.runs_for(due - time.monotonic())


@contextmanager
def directory() -> Iterator[Path]:
    """A directory, for root with a small file system at `output`."""
    with tempfile.TemporaryDirectory(prefix="tfdist-soak-") as name:
        path = Path(name)
        if os.geteuid():
            yield path
            return
        (path / "output").mkdir()
        disk = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES},mode=755", "tmpfs"]
        subprocess.run([*disk, str(path / "output")], check=True)
        try:
            yield path
        finally:
            subprocess.run(["umount", "--lazy", str(path / "output")], check=True)


def table(tally: dict[str, Tally]) -> str:
    """The faults as a Markdown table."""
    lines = ["| fault | injected | survived | seconds to the next step (median, longest) |"]
    lines += ["| --- | --- | --- | --- |"]
    for fault, found in tally.items():
        if found.injected:
            seconds = found.seconds or [float("nan")]
            times = f"{statistics.median(seconds):.1f}, {max(seconds):.1f}"
            lines.append(f"| {fault} | {found.injected} | {found.survived} | {times} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=20.0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--save_steps", type=int, default=100)
    parser.add_argument("--strategy", action="append", choices=STRATEGIES)
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    strategies = options.strategy or list(STRATEGIES)
    faults = options.fault or list(FAULTS)
    if os.geteuid():
        faults = [fault for fault in faults if fault not in OF_ROOT]
    tally = {fault: Tally() for fault in faults}
    effective: dict[str, float] = {}
    code = 0
    for strategy in strategies:
        soak = Soak(
            strategy,
            options.epochs,
            options.save_steps,
            options.every,
            faults,
            random.Random(options.seed),
            tally,
        )
        try:
            effective[strategy] = soak.run(options.seconds / len(strategies))
        except RuntimeError as error:
            print(error, flush=True)
            code = 1
    print(f"\n{table(tally)}\n\n| strategy | effective time |\n| --- | --- |")
    for strategy, share in effective.items():
        print(f"| {strategy} | {share:.2f} |")
    injected = sum(each.injected for each in tally.values())
    survived = sum(each.survived for each in tally.values())
    print(f"\n{survived} of {injected} faults survived")
    return code


if __name__ == "__main__":
    sys.exit(main())
