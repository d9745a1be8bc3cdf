#!/usr/bin/env python
"""Measures a table that is larger than the memory of one ps: bytes per step, and memory.

    scripts/benchmarks/measure_table.py                  # needs root, for a network namespace
    scripts/benchmarks/measure_table.py --users 500000 2000000 --batch_sizes 128 512
    scripts/benchmarks/measure_table.py --ps_megabytes=400 --ps 1 2

Trains examples/recommender.py. The bytes are all that pass between the tasks while they train, per
step of a worker, and per interaction. They do not contain the checkpoints. The memory is the peak
of the resident memory of the chief and of the largest ps, TensorFlow's own included. With
`--ps_megabytes`, TensorFlow's allocator gives tensors at most so much memory in each ps.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.table_jobs import TableJob, TableResult, run  # noqa: E402

HEADER = (
    "ps",
    "rows",
    "table, MB",
    "batch",
    "bytes per step",
    "per interaction",
    "steps/s",
    "chief, MB",
    "a ps, MB",
    "what happened",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", nargs="+", type=int, default=[250_000, 1_000_000])
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--ps", nargs="+", type=int, default=[2])
    for name, default in (
        ("width", 64),
        ("workers", 1),
        ("partitions", 8),
        ("ps_megabytes", 0),
        ("steps", 100),
        ("epochs", 3),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    for ps, users, batch_size in product(arguments.ps, arguments.users, arguments.batch_sizes):
        job = TableJob(
            users=users,
            width=arguments.width,
            batch_size=batch_size,
            workers=arguments.workers,
            ps=ps,
            partitions=arguments.partitions,
            ps_megabytes=arguments.ps_megabytes,
            steps=arguments.steps,
            epochs=arguments.epochs,
        )
        with tempfile.TemporaryDirectory(prefix="tfdist-table-") as directory:
            print(row(job, run(job, Path(directory))), flush=True)


def row(job: TableJob, result: TableResult) -> str:
    """A row of the table, in Markdown."""
    of_ps = [peak for name, peak in result.peak_megabytes.items() if name.startswith("ps")]
    lines = result.failure.strip().splitlines()
    cells = (
        str(job.ps),
        f"{job.users:,}",
        f"{job.table_megabytes:.0f}",
        str(job.batch_size),
        "" if lines else f"{result.bytes_per_step:,.0f}",
        "" if lines else f"{result.bytes_per_step / job.batch_size:.0f}",
        "" if lines else f"{result.steps_per_second:.1f}",
        f"{result.peak_megabytes.get('chief:0', 0):.0f}",
        f"{max(of_ps, default=0):.0f}",
        failed_with(result.failure) if lines else "trained",
    )
    return f"| {' | '.join(cells)} |"


def failed_with(log: str) -> str:
    """The failed allocation, or the last line of the log of a failed job."""
    found = re.search(r"OOM when allocating tensor with shape\S+ and type \w+ on [\w/:]+", log)
    return found[0] if found else log.strip().splitlines()[-1]


if __name__ == "__main__":
    main()
