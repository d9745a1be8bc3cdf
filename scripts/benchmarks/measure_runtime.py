#!/usr/bin/env python
"""Measures runtime options of a job: oneDNN, the allocator, CPU pinning, steps_per_execution.

    scripts/benchmarks/measure_runtime.py
    scripts/benchmarks/measure_runtime.py --rounds=2 --steps=4 --only "oneDNN off" AVX2
    scripts/benchmarks/measure_runtime.py --batch_size=2 --steps=100 --only steps_per_execution

Trains ResNet-20 with tfdist, with 64 images per process. The choices of a group take turns, one
epoch each. The last column is the median ratio to the first choice, epoch by epoch. Use an
otherwise idle machine. The instruction set limit applies only to oneDNN; the rest of TensorFlow
uses the instructions that it was built with.
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

from scripts.benchmarks import runs  # noqa: E402
from scripts.benchmarks.jobs import ONEDNN, Job, Size  # noqa: E402

_KEPT = (("MALLOC_MMAP_THRESHOLD_", str(32 << 20)), ("MALLOC_TRIM_THRESHOLD_", str(2**31 - 1)))
# The other strategies reject more than one step per execution.
_EXECUTE_SEVERAL = (("one_device", 1), ("multi_worker_mirrored", 2), ("horovod", 2))
_ISA = "ONEDNN_MAX_CPU_ISA"
_ISAS = {"SSE4.1": "SSE41", "AVX": "AVX", "AVX2": "AVX2", "AVX-512": "AVX512_CORE"}


def choices() -> list[dict[str, Job]]:
    """Groups of jobs to compare, by name: one task on one core, then two tasks on all cores."""

    def alone(*environ: tuple[str, str]) -> Job:
        return Job("tfdist", "one_device", 1, cores=1, environ=environ)

    found = [
        {
            "as tfdist chooses": alone(),
            "oneDNN off": alone((ONEDNN, "0")),
            **{f"oneDNN, {name}": alone((_ISA, isa)) for name, isa in _ISAS.items()},
            "freed memory kept": alone(*_KEPT),
            "freed memory kept, oneDNN off": alone((ONEDNN, "0"), *_KEPT),
        }
    ]
    for strategy in ("multi_worker_mirrored", "horovod", "parameter_server"):
        by_cores = {cores: (f"--cores={cores}",) for cores in ("divide", "share")}
        found.append(
            {
                f"{strategy} x 2, --cores={cores}": Job("tfdist", strategy, 2, flags=flags)
                for cores, flags in by_cores.items()
            }
        )
    for strategy, tasks in _EXECUTE_SEVERAL:
        by_steps = {steps: (f"--steps_per_execution={steps}",) for steps in (1, 5, 15)}
        found.append(
            {
                f"{strategy} x {tasks}, steps_per_execution={steps}": Job(
                    "tfdist", strategy, tasks, training_flags=flags
                )
                for steps, flags in by_steps.items()
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rounds", 8), ("batch_size", 64), ("steps", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="parts of the names of choices"
    )
    arguments = parser.parse_args()
    selected = [
        {name: job for name, job in group.items() if any(text in name for text in arguments.only)}
        for group in choices()
    ]
    if not any(selected):
        names = "; ".join(name for group in choices() for name in group)
        parser.error(f"--only: received {arguments.only}; accepted: parts of {names}")
    size = Size(arguments.batch_size, arguments.steps, arguments.rounds + 1)
    print("| choice | images/s (least to greatest) | / the first (least to greatest) |")
    print("| --- | --- | --- |")
    has_failed = False
    for group in filter(None, selected):
        with tempfile.TemporaryDirectory(prefix="tfdist-runtime-") as directory:
            found = runs.run_in_turn(group, Path(directory), size)
        has_failed |= len(found) < len(group)
        first = found.get(next(iter(group)))
        for name, result in found.items():
            against_first = spread(result.ratios(first), ".2f") if first else ""
            rates = spread(result.images_per_second, ".1f")
            print(f"| {name} | {rates} | {against_first} |", flush=True)
    sys.exit(1 if has_failed else 0)


def spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


if __name__ == "__main__":
    main()
