#!/usr/bin/env python
"""Measures the startup and shutdown times of a job on this machine.

    scripts/benchmarks/measure_start.py
    scripts/benchmarks/measure_start.py --tasks 1 2 --num_layers 44 --rounds=1

Trains ResNet-20, or a ResNet of `--num_layers`, under multi_worker_mirrored (one_device with one
task). Measures the time from the command to the end of the first step, and from the last step to
the exit of the command. Compares with a hand-written job, in which each process imports TensorFlow,
builds the model and traces its step, and with one hand-written process (`one`): one import, one
build and one trace. Finally measures `tfdist --help`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks import runs  # noqa: E402
from scripts.benchmarks.jobs import Job, Size  # noqa: E402

STRATEGY = "multi_worker_mirrored"
# Two epochs of two steps: the measured times are before and after them.
SIZE = Size(batch_size=8, steps=2, epochs=2)
WAYS = ("plain_with_onednn", "tfdist")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", type=int, default=[1, 2, 4, 8, 16], metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num_layers", type=int, default=SIZE.num_layers)
    arguments = parser.parse_args()
    size = replace(SIZE, num_layers=arguments.num_layers)
    header = ("tasks", "by hand, to first step, s", "tfdist", "tfdist / by hand", "tfdist / one")
    print(f"| {' | '.join(header)} | tfdist, to exit, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    one = statistics.median(
        run("plain_with_onednn", 1, size).seconds_to_first_step for _ in range(arguments.rounds)
    )
    for tasks in arguments.tasks:
        found: dict[str, list[runs.Result]] = {way: [] for way in WAYS}
        for _ in range(arguments.rounds):
            for way in WAYS:
                found[way].append(run(way, tasks, size))
        by_hand, tfdist = (
            statistics.median(result.seconds_to_first_step for result in found[way]) for way in WAYS
        )
        end = statistics.median(result.seconds_to_exit for result in found["tfdist"])
        ratios = f"{tfdist / by_hand:.2f} | {tfdist / one:.2f}"
        print(f"| {tasks} | {by_hand:.1f} | {tfdist:.1f} | {ratios} | {end:.1f} |", flush=True)
    print(f"tfdist --help: {statistics.median(help_seconds() for _ in range(9)):.2f} s")


def run(way: str, tasks: int, size: Size) -> runs.Result:
    strategy = STRATEGY if tasks > 1 else "one_device"
    with tempfile.TemporaryDirectory(prefix="tfdist-start-") as directory:
        return runs.run(Job(way, strategy, tasks), Path(directory), size)


def help_seconds() -> float:
    begin = time.perf_counter()
    command = [sys.executable, "-m", "tfdist", "--help"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
