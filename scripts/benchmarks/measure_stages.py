#!/usr/bin/env python
"""Compares stages and replicas of `in_graph` with one process on one core.

    scripts/benchmarks/measure_stages.py
    scripts/benchmarks/measure_stages.py --kind=conv --width=32 --batch_size=256
    scripts/benchmarks/measure_stages.py --layouts 1x2x8 1x2x8r

The first row is one process that may use one core. The other rows use all cores of this machine:
each worker has its share. Prints a table in Markdown; examples/s are medians over the epochs but
the first, and MB the most memory of one task.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = str(ROOT / "scripts" / "benchmarks" / "stages_training.py")
DEADLINE = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=("dense", "conv"), default="dense")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch_size", type=int, default=4096)
    parser.add_argument(
        "--layouts",
        nargs="+",
        default=["2x1x1", "1x2x1", "1x2x4", "1x2x8", "1x2x16", "4x1x1", "2x2x8", "1x4x8"],
        help="replicas x stages x microbatches; with r: --recompute",
    )
    arguments = parser.parse_args()
    names = ("kind", "layers", "width", "batch_size")
    flags = [f"--{name}={getattr(arguments, name)}" for name in names]
    print("| job | examples/s | of one core | MB |")
    print("| --- | --- | --- | --- |")
    alone, memory = run(["taskset", "-c", "0", sys.executable, PROGRAM, *flags])
    print(f"| one process on one core | {alone:,.0f} | 1.00 | {memory:,.0f} |", flush=True)
    for layout in arguments.layouts:
        replicas, stages, microbatches = map(int, layout.rstrip("r").split("x"))
        recompute = ["--recompute"] if layout.endswith("r") else []
        command = [sys.executable, "-m", "tfdist", "run", f"--workers={replicas * stages}"]
        command += ["--strategy=in_graph", PROGRAM, *flags]
        command += [f"--stages={stages}", f"--microbatches={microbatches}", *recompute]
        rate, memory = run(command)
        job = " ".join([f"{replicas} x {stages}, --microbatches={microbatches}", *recompute])
        cells = [job, f"{rate:,.0f}", f"{rate / alone:.2f}", f"{memory:,.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0


def run(command: list[str]) -> tuple[float, float]:
    """Runs a job; its examples/s, and the most MB of one of its tasks."""
    with tempfile.TemporaryDirectory(prefix="tfdist-stages-") as directory:
        ended = subprocess.run(
            [*command, f"--output_dir={directory}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
        )
        if ended.returncode:
            sys.exit(ended.stdout)
        rates = json.loads((Path(directory) / "rates.json").read_text())
        kibibytes = max(int(path.read_text()) for path in Path(directory).glob("memory-*"))
    return statistics.median(rates), kibibytes * 1024 / 1e6


if __name__ == "__main__":
    sys.exit(main())
