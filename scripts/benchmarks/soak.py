#!/usr/bin/env python
"""Injects random faults into one job after the other; each must give the expected weights.

    scripts/benchmarks/soak.py --seconds=1800 --every=60 --epochs=100
    scripts/benchmarks/soak.py --seconds=120 --every=10 --strategy=horovod --seed=7

A job runs under `tfdist run --max_restarts`. The faults are: kill -9 of a task, SIGTERM to a task,
a task suspended for two seconds, and the newest checkpoint truncated before a kill. One fault
happens at a random time in each period of `--every` seconds, or in each half of the duration of
the undisturbed job if that is shorter. Prints the time until the next checkpoint for each fault.
The exit code is 1 if a job fails, or if its weights differ from those of the undisturbed job.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).parents[2]

PROGRAM = ROOT / "tests" / "support" / "program.py"
TRAINING = ["--shuffle", "--examples=2001", "--batch_size=2", "--save_steps=100"]
FAULTS = ("kill", "terminate", "stop", "damage")


class Job:
    """A running job.

    Args:
      directory: the output directory.
      strategy: the strategy; the job has two workers.
      epochs: the number of epochs.
    """

    def __init__(self, directory: Path, strategy: str, epochs: int) -> None:
        self.directory = directory
        command = [sys.executable, "-m", "tfdist", "run", f"--strategy={strategy}"]
        command += ["--workers=2", "--max_restarts=100", "--restart_delay=0", str(PROGRAM)]
        command += [
            *TRAINING,
            f"--epochs={epochs}",
            f"--output_dir={directory}",
            f"--result_dir={directory / 'result'}",
        ]
        directory.mkdir()
        with (directory / "log").open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def newest(self) -> int:
        """The number of the newest checkpoint; 0 if there is none."""
        saved = (self.directory / "checkpoints").glob("ckpt-*.index")
        return max((int(path.stem.rpartition("-")[2]) for path in saved), default=0)

    def weights(self) -> np.ndarray:
        """The final weights."""
        with np.load(self.directory / "result" / "worker-0.npz") as found:
            return np.array(found["weights"])

    def wait_for_checkpoint(self, after: int) -> float | None:
        """Seconds until there is a newer checkpoint; None if the job exits before."""
        started = time.monotonic()
        while self.newest() <= after:
            if self.process.poll() is not None:
                return None
            time.sleep(0.05)
        return time.monotonic() - started

    def runs_for(self, seconds: float) -> bool:
        """Whether the job still runs after `seconds`; returns immediately when it exits."""
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return True
        return False

    def disturb(self, fault: str, rng: random.Random) -> str | None:
        """Injects a fault into a random task; returns its index, or None if no task is running."""
        # The tasks are children of the launcher's fork server.
        children = psutil.Process(self.process.pid).children()
        tasks = sorted(
            (task for child in children for task in child.children()), key=lambda task: task.pid
        )
        if not tasks:
            return None
        number = rng.randrange(len(tasks))
        task = tasks[number]
        if fault == "terminate":
            task.send_signal(signal.SIGTERM)
        elif fault == "stop":
            task.suspend()
            time.sleep(2.0)
            task.resume()
        else:
            saved = len(list((self.directory / "checkpoints").glob("ckpt-*.index")))
            # Do not damage the only checkpoint: the job could not resume.
            if fault == "damage" and saved > 1:
                path = self.directory / "checkpoints" / f"ckpt-{self.newest()}.data-00000-of-00001"
                os.truncate(path, path.stat().st_size // 2)
            task.kill()
        return str(number)


def run(job: Job, faults: int, deadline: float, every: float, rng: random.Random) -> int:
    """Injects faults into `job` until it exits, or until `deadline` (`time.monotonic`).

    If there was no fault so far, injects one even after `deadline`, because the start of a job may
    take that long.

    Returns the number of faults, including the earlier `faults`.
    """
    if job.wait_for_checkpoint(after=0) is None:
        return faults
    while True:
        due = time.monotonic() + every
        pause = rng.uniform(0.0, every)
        if not job.runs_for(min(pause, deadline - time.monotonic()) if faults else pause):
            return faults
        if faults and time.monotonic() >= deadline:
            return faults
        fault, before = rng.choice(FAULTS), job.newest()
        try:
            task = job.disturb(fault, rng)
        except psutil.NoSuchProcess:
            continue
        if task is None:
            continue
        seconds = job.wait_for_checkpoint(before)
        after = "the job completed" if seconds is None else f"next checkpoint after {seconds:.1f} s"
        print(f"{fault} task {task} at checkpoint {before}: {after}", flush=True)
        faults += 1
        job.runs_for(due - time.monotonic())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--every", type=float, default=60.0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--strategy", default="multi_worker_mirrored")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="tfdist-soak-") as directory:
        undisturbed = Job(Path(directory, "undisturbed"), options.strategy, options.epochs)
        undisturbed.wait_for_checkpoint(after=0)
        first_saved = time.monotonic()
        if undisturbed.process.wait():
            print((undisturbed.directory / "log").read_text())
            return 1
        # This is never zero, because the export and the exit also take time.
        every = min(options.every, (time.monotonic() - first_saved) / 2)
        expected = undisturbed.weights()
        deadline = time.monotonic() + options.seconds
        jobs = faults = 0
        while not faults or time.monotonic() < deadline:
            job = Job(Path(directory, f"job-{jobs}"), options.strategy, options.epochs)
            faults = run(job, faults, deadline, every, rng)
            code = job.process.wait()
            if code or not np.array_equal(job.weights(), expected):
                print((job.directory / "log").read_text())
                print(f"job {jobs} exited with code {code}, or its weights are wrong")
                return 1
            jobs += 1
        print(
            f"{faults} faults in {jobs} jobs, all of which gave bitwise the weights of the "
            "undisturbed job"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
