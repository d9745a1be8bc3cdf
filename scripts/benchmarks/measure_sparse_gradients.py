#!/usr/bin/env python
"""Measures the bytes and the speed of an embedding's gradients, with two processes.

    scripts/benchmarks/measure_sparse_gradients.py
    scripts/benchmarks/measure_sparse_gradients.py --strategies horovod --rows 1000 --rounds=1

The model is a table of 64 columns, of which a batch of 64 examples uses 2,048 rows, many of them
several times. For each size of the table, the hand-written script and tfdist take turns, one epoch
each, after a warm-up epoch. The bytes are those that both processes send over the loopback
interface in a step, so the machine must be otherwise idle. `rows, MB` and `table, MB` are the bytes
that a gather of the different rows and a sum of dense gradients would send.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.jobs import Job, Size  # noqa: E402
from scripts.benchmarks.runs import exit_on_sigterm, run_in_turn  # noqa: E402
from scripts.benchmarks.training import COLUMNS, frequent_ids  # noqa: E402

STRATEGIES = ("multi_worker_mirrored", "horovod")
PROCESSES, BATCH_SIZE, STEPS = 2, 64, 100
HEADER = ("strategy", "rows", "rows, MB", "table, MB", "job", "MB per step", "examples/s", "times")


def least_megabytes(rows: int) -> tuple[float, float]:
    """The MB that all processes send in a step: as rows of 64-bit or 32-bit index, or as a table.

    A ring's gather sends N (N - 1) times the rows of a process, a ring's sum 2 (N - 1) tables.
    """
    batches = np.split(frequent_ids(BATCH_SIZE * 32, rows), 32)
    different = statistics.mean(len(np.unique(batch)) for batch in batches)
    gathered = PROCESSES * (PROCESSES - 1) * different * (4 * COLUMNS + 4)
    return gathered / 1e6, 2 * (PROCESSES - 1) * rows * 4 * COLUMNS / 1e6


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--rows", nargs="+", type=int, default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    code = 0
    for strategy in options.strategies:
        for rows in options.rows:
            flags = ("--model=embedding", f"--rows={rows}")
            jobs = {
                name: Job(way, strategy, PROCESSES, training_flags=flags)
                for name, way in {"by hand": "plain", "tfdist": "tfdist"}.items()
            }
            size = Size(BATCH_SIZE, STEPS, options.rounds + 1)
            with tempfile.TemporaryDirectory(prefix="tfdist-sparse-") as directory:
                results = run_in_turn(jobs, Path(directory), size)
            if len(results) < len(jobs):
                code = 1
                continue
            least = " | ".join(f"{number:.2f}" for number in least_megabytes(rows))
            for name, result in results.items():
                times = statistics.median(result.ratios(results["by hand"]))
                print(
                    f"| {strategy} | {rows:,} | {least} | {name} | "
                    f"{result.bytes_per_step / 1e6:.2f} | {result.median:.0f} | {times:.2f} |",
                    flush=True,
                )
    return code


if __name__ == "__main__":
    sys.exit(main())
