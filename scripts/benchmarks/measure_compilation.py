#!/usr/bin/env python
"""Measures `--jit_compile` with one process.

    scripts/benchmarks/measure_compilation.py

The two jobs of a model take turns, one epoch each, after a warm-up epoch. The ratio compares the
time of a step with that of the model without XLA in the same turn; the figures are the median,
least and greatest over the turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.jobs import Job, Size  # noqa: E402
from scripts.benchmarks.runs import exit_on_sigterm, run_in_turn  # noqa: E402

#: The models, with the batch size and the steps of an epoch.
MODELS = {"resnet20": (64, 15), "mlp": (32, 4000), "wide_mlp": (512, 10)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    exit_on_sigterm()
    print("| model | ms a step | with XLA | times (least to greatest) |\n| --- | --- | --- | --- |")
    code = 0
    for model in options.models:
        batch_size, steps = MODELS[model]
        own = (f"--model={model}", "--fit", "--steps_per_execution=0")
        plain = Job("tfdist", "one_device", 1, cores=1, training_flags=own)
        jobs = {"plain": plain, "XLA": plain.with_training_flags("--jit_compile")}
        with tempfile.TemporaryDirectory(prefix="tfdist-compilation-") as directory:
            size = Size(batch_size, steps, options.rounds + 1)
            results = run_in_turn(jobs, Path(directory), size)
        if len(results) < len(jobs):
            code = 1
            continue
        ratios = sorted(results["plain"].ratios(results["XLA"]))
        ms = (f"{1e3 * batch_size / results[name].median:.2f}" for name in jobs)
        times = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {model} | {' | '.join(ms)} | {times} |", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
