#!/usr/bin/env python
"""Measures the step of a small model: hand-written, with tfdist, and with PyTorch.

    scripts/benchmarks/measure_short_steps.py
    scripts/benchmarks/measure_short_steps.py --strategies multi_worker_mirrored --rounds=2

The jobs of a strategy take turns, one epoch each, after a warm-up epoch in which `job.fit` chooses
how many steps TensorFlow gets at once. `tfdist, single steps` has a callback that acts on each
step. The ratios compare the time of a step with that of the hand-written script in the same turn;
the figures are the median, least and greatest over the turns. PyTorch is measured if it is
installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.benchmark import default_ways  # noqa: E402
from scripts.benchmarks.jobs import TORCH_WAYS, Job, Size  # noqa: E402
from scripts.benchmarks.runs import exit_on_sigterm, run_in_turn  # noqa: E402

#: The steps of an epoch, of which the first contains the choice.
STRATEGIES = {"one_device": 8000, "multi_worker_mirrored": 2000, "horovod": 2000}
BATCH_SIZE = 32
_MODEL = "--model=mlp"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    print("| strategy | job | ms a step | times that by hand (least to greatest) |")
    print("| --- | --- | --- | --- |", flush=True)
    code = 0
    for strategy in options.strategies:
        processes = 1 if strategy == "one_device" else 2
        jobs = {
            "by hand": Job("plain", strategy, processes, training_flags=(_MODEL,)),
            "tfdist, single steps": Job(
                "tfdist", strategy, processes, training_flags=(_MODEL, "--fit")
            ),
            "tfdist": Job(
                "tfdist",
                strategy,
                processes,
                training_flags=(_MODEL, "--fit", "--steps_per_execution=0"),
            ),
        }
        if TORCH_WAYS[0] in default_ways():
            jobs["PyTorch DDP"] = Job(TORCH_WAYS[0], "ddp", processes, training_flags=(_MODEL,))
        with tempfile.TemporaryDirectory(prefix="tfdist-steps-") as directory:
            results = run_in_turn(
                jobs, Path(directory), Size(BATCH_SIZE, STRATEGIES[strategy], options.rounds + 1)
            )
        if len(results) < len(jobs):
            code = 1
        first = results.get("by hand")
        for name, result in results.items():
            milliseconds = 1e3 * BATCH_SIZE * processes / result.median
            times = ""
            if first is not None:
                ratios = sorted(first.ratios(result))
                times = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"| {strategy} | {name} | {milliseconds:.2f} | {times} |", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
