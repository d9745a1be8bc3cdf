#!/usr/bin/env python
"""Measures the bytes and the speed of `--accumulate_steps`, with two processes on this machine.

    scripts/benchmarks/measure_accumulation.py
    scripts/benchmarks/measure_accumulation.py --strategies horovod --accumulate_steps 1 4

All jobs of a strategy train a wide MLP with batches of 16 and take turns, one epoch each, after a
warm-up epoch. The bytes are those sent over the loopback interface for 16 examples of each process,
so the machine must be otherwise idle; `times` compares them and the speed with one batch per
update.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.jobs import Job, Size  # noqa: E402
from scripts.benchmarks.runs import exit_on_sigterm, run_in_turn  # noqa: E402

STRATEGIES = ("multi_worker_mirrored", "horovod", "parameter_server")
BATCH_SIZE, STEPS = 16, 32


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--accumulate_steps", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    print("| strategy | batches per update | MB per batch | times | examples/s | times |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    code = 0
    for strategy in options.strategies:
        jobs = {
            steps: Job(
                "tfdist",
                strategy,
                2,
                flags=(f"--accumulate_steps={steps}",),
                training_flags=("--model=wide_mlp",),
            )
            for steps in options.accumulate_steps
        }
        with tempfile.TemporaryDirectory(prefix="tfdist-accumulation-") as directory:
            results = run_in_turn(
                jobs, Path(directory), Size(BATCH_SIZE, STEPS, options.rounds + 1)
            )
        if len(results) < len(jobs):
            code = 1
        first = next(iter(results.values()), None)
        for steps, result in results.items():
            assert first is not None
            sent, rate = result.bytes_per_step, result.median
            print(
                f"| {strategy} | {steps} | {sent / 1e6:.2f} | {sent / first.bytes_per_step:.3f} | "
                f"{rate:.0f} | {rate / first.median:.2f} |",
                flush=True,
            )
    return code


if __name__ == "__main__":
    sys.exit(main())
