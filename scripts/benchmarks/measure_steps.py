#!/usr/bin/env python
"""Measures how the tasks of a training spend their time, with TensorFlow's profiler.

    scripts/benchmarks/measure_steps.py
    scripts/benchmarks/measure_steps.py --strategies horovod --steps=4

Trains ResNet-20 with tfdist in two processes (one_device: one process on one core), and profiles
one epoch of each task. The columns are milliseconds per step: the total; the kernels of
convolutions and matrix multiplications, of batch normalization, and all other kernels, some of
which wait for another task; the time between kernels, for Python and the runtime; the CPU time of
all threads.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks import profiles, runs  # noqa: E402
from scripts.benchmarks.jobs import Job, Size  # noqa: E402

STRATEGIES = ("one_device", "multi_worker_mirrored", "horovod", "parameter_server")
#: The third epoch is profiled, after the warm-up and a normal epoch.
EPOCHS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    for name, default in (("batch_size", 64), ("steps", 40), ("num_layers", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    size = Size(arguments.batch_size, arguments.steps, EPOCHS, arguments.num_layers)
    columns = ("task", "ms per step", *profiles.KINDS, "between kernels", "processor")
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for strategy in arguments.strategies:
        for profile in measured(strategy, size):
            cells = milliseconds(profile, size.steps)
            print(f"| {strategy}, {profile.task} | {' | '.join(cells)} |", flush=True)


def measured(strategy: str, size: Size) -> list[profiles.Profile]:
    with tempfile.TemporaryDirectory(prefix="tfdist-steps-") as directory:
        found = Path(directory, "profiles")
        found.mkdir()
        alone = strategy == "one_device"
        job = Job("tfdist", strategy, 1 if alone else 2, 1 if alone else 0)
        runs.run(job.with_training_flags(f"--profile_dir={found}"), Path(directory), size)
        return profiles.read(found)


def milliseconds(profile: profiles.Profile, steps: int) -> list[str]:
    kernels = [profile.kernels[kind] for kind in profiles.KINDS]
    seconds = [profile.wall, *kernels, profile.wall - sum(kernels), profile.cpu]
    return [f"{1000 * value / steps:.1f}" for value in seconds]


if __name__ == "__main__":
    main()
