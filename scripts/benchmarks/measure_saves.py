#!/usr/bin/env python
"""Measures what saving costs: `save_steps` against a training that saves no checkpoint.

    scripts/benchmarks/measure_saves.py
    scripts/benchmarks/measure_saves.py --strategies horovod --models wide_mlp --save_steps 1 10

The jobs of a strategy take turns, one epoch each, after a warm-up epoch, and a share compares the
epochs of one turn: the part of an epoch's time by which it is longer with the saves. All jobs save
at the end of each epoch, too, outside of the time. The figures are the median, least and greatest
over the turns.
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

from scripts.benchmarks.jobs import Job, Size  # noqa: E402
from scripts.benchmarks.runs import exit_on_sigterm, run_in_turn  # noqa: E402

STRATEGIES = ("one_device", "multi_worker_mirrored", "horovod", "parameter_server")
#: The models, with the batch size of a process and the steps of an epoch.
MODELS = {"resnet20": (64, 40), "wide_mlp": (512, 20)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--save_steps", nargs="+", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    print("| strategy | model | ms a step | save_steps | longer by (least to greatest) |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    code = 0
    for model in options.models:
        size = Size(*MODELS[model], options.rounds + 1)
        for strategy in options.strategies:
            processes = 1 if strategy == "one_device" else 2
            jobs = {
                steps: Job(
                    "tfdist",
                    strategy,
                    processes,
                    training_flags=(f"--model={model}", f"--save_steps={steps}"),
                )
                for steps in (0, *options.save_steps)
            }
            with tempfile.TemporaryDirectory(prefix="tfdist-saves-") as directory:
                results = run_in_turn(jobs, Path(directory), size)
            if len(results) < len(jobs):
                code = 1
                continue
            milliseconds = 1e3 * size.batch_size * processes / results[0].median
            for steps in options.save_steps:
                shares = sorted(ratio - 1 for ratio in results[0].ratios(results[steps]))
                print(
                    f"| {strategy} | {model} | {milliseconds:.0f} | {steps} | "
                    f"{statistics.median(shares):.1%} ({shares[0]:.1%} to {shares[-1]:.1%}) |",
                    flush=True,
                )
    return code


if __name__ == "__main__":
    sys.exit(main())
