#!/usr/bin/env python
"""Measures what can be chosen for a job: oneDNN, the allocator, own cores, steps_per_execution.

    scripts/measure_runtime.py
    scripts/measure_runtime.py --rounds=1 --steps=4 --epochs=2 --only "oneDNN off" AVX2
    scripts/measure_runtime.py --batch_size=2 --steps=100 --only steps_per_execution

ResNet-20 by tfdist at 64 images a process, each choice in turn; on an otherwise idle machine.
oneDNN is held to the instructions of older CPUs; the rest of TensorFlow has those of its build.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.jobs import ONEDNN, Job, Size  # noqa: E402

_KEPT = (("MALLOC_MMAP_THRESHOLD_", str(32 << 20)), ("MALLOC_TRIM_THRESHOLD_", str(2**31 - 1)))
# The others refuse more than one step at a time.
_EXECUTE_SEVERAL = (("one_device", 1), ("multi_worker_mirrored", 2), ("horovod", 2))
_ISAS = {"SSE4.1": "SSE41", "AVX": "AVX", "AVX2": "AVX2", "AVX-512": "AVX512_CORE"}


def choices() -> dict[str, Job]:
    """What to compare, by name: on one core, and then two tasks on all of them."""

    def alone(*environ: tuple[str, str]) -> Job:
        return Job("tfdist", "one_device", 1, cores=1, environ=environ)

    found = {
        "as tfdist chooses": alone(),
        "oneDNN off": alone((ONEDNN, "0")),
        **{f"oneDNN, {name}": alone(("ONEDNN_MAX_CPU_ISA", isa)) for name, isa in _ISAS.items()},
        "freed memory kept": alone(*_KEPT),
        "freed memory kept, oneDNN off": alone((ONEDNN, "0"), *_KEPT),
    }
    for strategy in ("multi_worker_mirrored", "horovod", "parameter_server"):
        for cores in ("divide", "share"):
            job = Job("tfdist", strategy, 2, flags=(f"--cores={cores}",))
            found[f"{strategy} x 2, --cores={cores}"] = job
    for strategy, tasks in _EXECUTE_SEVERAL:
        for steps in (1, 5, 15):
            job = Job("tfdist", strategy, tasks, steps_per_execution=steps)
            found[f"{strategy} x {tasks}, steps_per_execution={steps}"] = job
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rounds", 3), ("batch_size", 64), ("steps", 15), ("epochs", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="of a choice")
    arguments = parser.parse_args()
    every = choices()
    found = {name: every[name] for name in every if any(text in name for text in arguments.only)}
    if not found:
        parser.error(f"--only: received {arguments.only}; accepted: parts of {'; '.join(every)}")
    size = Size(arguments.batch_size, arguments.steps, arguments.epochs)
    rates: dict[str, list[float]] = {name: [] for name in found}
    with tempfile.TemporaryDirectory(prefix="tfdist-runtime-") as directory:
        for number in range(arguments.rounds):
            for place, (name, job) in enumerate(found.items()):
                path = Path(directory) / f"{number}-{place}"
                path.mkdir()
                rates[name] += job.run(path, size).images_per_second
    print("| choice | images/s (least to greatest) |\n| --- | --- |")
    for name, measured in rates.items():
        median = statistics.median(measured)
        print(f"| {name} | {median:.1f} ({min(measured):.1f} to {max(measured):.1f}) |")


if __name__ == "__main__":
    main()
