#!/usr/bin/env python
"""Measures `--precision=mixed_bfloat16` against float32, under each strategy with two processes.

    scripts/benchmarks/measure_precision.py
    scripts/benchmarks/measure_precision.py --strategies horovod --models wide_mlp --rounds=2

The jobs of a row take turns, one epoch each, after a warm-up epoch, and a ratio compares the epochs
of one turn. The figures are the median, least and greatest over the turns. The first line says
which of the CPU's instructions multiply matrices of bfloat16. PyTorch with and without `autocast`
is in a row of its own if it is installed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.benchmark import default_ways  # noqa: E402
from scripts.benchmarks.jobs import TORCH_WAYS, Job, Size  # noqa: E402
from scripts.benchmarks.runs import exit_on_sigterm, run_in_turn  # noqa: E402

STRATEGIES = (
    "one_device",
    "multi_worker_mirrored",
    "horovod",
    "parameter_server",
    "parameter_server --sync",
    "mirrored",
    "in_graph",
    "torch_channels_last",
)
#: The models, with the batch size of a process and the steps of an epoch.
MODELS = {"resnet20": (64, 12), "wide_mlp": (64, 12)}
BFLOAT16 = "mixed_bfloat16"
_INSTRUCTIONS = ("amx_bf16", "avx512_bf16")


def job_of(strategy: str, model: str) -> Job:
    """The job of a row, in float32."""
    training = (f"--model={model}",)
    if strategy in TORCH_WAYS:
        return Job(strategy, "ddp", 2, training_flags=training)
    name, _, flag = strategy.partition(" ")
    flags = {"mirrored": ("--num_cpu_devices=2",)}.get(name, (flag,) if flag else ())
    processes = 1 if name in ("one_device", "mirrored") else 2
    return Job("tfdist", name, processes, flags=flags, training_flags=training)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    known = [each for each in STRATEGIES if each not in TORCH_WAYS or each in default_ways()]
    parser.add_argument("--strategies", nargs="+", default=known, choices=known)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    flags = Path("/proc/cpuinfo").read_text().split()
    print("This CPU has:", *([each for each in _INSTRUCTIONS if each in flags] or ["neither"]))
    print("| strategy | model | float32, examples/s | bfloat16 | times (least to greatest) |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    code = 0
    for model in options.models:
        size = Size(*MODELS[model], options.rounds + 1)
        for strategy in options.strategies:
            job = job_of(strategy, model)
            jobs = {False: job, True: replace(job, precision=BFLOAT16)}
            with tempfile.TemporaryDirectory(prefix="tfdist-precision-") as directory:
                results = run_in_turn(jobs, Path(directory), size)
            if len(results) < len(jobs):
                code = 1
                continue
            ratios = sorted(results[True].ratios(results[False]))
            times = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            rates = f"{results[False].median:.0f} | {results[True].median:.0f}"
            print(f"| {strategy} | {model} | {rates} | {times} |", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
