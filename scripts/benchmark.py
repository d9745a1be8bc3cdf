#!/usr/bin/env python
"""Measures tfdist against hand-written TensorFlow and PyTorch DDP, in one sitting and in turn.

    scripts/benchmark.py --json=results.json --plot=speed.png
    scripts/benchmark.py --strategies horovod --processes 2 --rounds=1 --steps=4 --epochs=2

The same ResNet-20 at the same batch a process, on images of noise held in memory. Each round runs
every job once; figures are medians over the epochs of all rounds, the first epoch of a job left
out, with the least and the greatest. On an otherwise idle machine: bytes are those of the loopback.
`apart` are as many trainings as processes, a core each, that do not wait for each other.
PyTorch is measured where it is installed (`pip install torch`). A job that fails is shown and left
out; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import arithmetic  # noqa: E402
from benchmarks.jobs import APART, ONEDNN, TORCH_WAYS, WAYS, Job, Result, Size  # noqa: E402

STRATEGIES = (APART, "multi_worker_mirrored", "horovod", "parameter_server")
ONE_CORE = Job("tfdist", "one_device", 1, cores=1)

Results = dict[Job, list[Result]]


def main() -> None:
    arguments = parse()
    size = Size(arguments.batch_size, arguments.steps, arguments.epochs)
    results: Results = {job: [] for job in jobs(arguments)}
    peak, has_failed = measured_peak(), False
    print(f"{os.cpu_count()} cores; one multiplies matrices at {peak / 1e9:.0f} GFLOP/s")
    with tempfile.TemporaryDirectory(prefix="tfdist-benchmark-") as directory:
        for number in range(arguments.rounds):
            for place, job in enumerate(results):
                path = Path(directory) / f"{number}-{place}"
                path.mkdir()
                try:
                    result = job.run(path, size)
                except RuntimeError as error:
                    has_failed = True
                    print(error, file=sys.stderr)
                    continue
                results[job].append(result)
                print(f"round {number + 1}: {job}: {result.median:.1f} images/s", flush=True)
    results = {job: found for job, found in results.items() if found}
    print("\n".join(table(results, peak, arguments.batch_size)))
    if arguments.json:
        lines = [
            {**asdict(job), "rounds": [asdict(result) for result in found]}
            for job, found in results.items()
        ]
        content = {"machine": machine(peak), "size": asdict(size), "jobs": lines}
        Path(arguments.json).write_text(json.dumps(content, indent=2) + "\n")
    if arguments.plot:
        plot(results, Path(arguments.plot))
    sys.exit(1 if has_failed else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4], metavar="N")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=default_ways())
    for name, default in (("rounds", 3), ("batch_size", 64), ("steps", 20), ("epochs", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", help="where to write every figure")
    parser.add_argument("--plot", help="where to draw images/s by the number of processes")
    return parser.parse_args()


def default_ways() -> list[str]:
    has_torch = importlib.util.find_spec("torch") is not None
    return [way for way in WAYS if way not in TORCH_WAYS or has_torch]


def jobs(arguments: argparse.Namespace) -> list[Job]:
    """Those to run in a round, in such an order that those to compare come after each other."""
    found = [ONE_CORE] if "tfdist" in arguments.ways else []
    for processes in arguments.processes:
        strategies = arguments.strategies if processes > 1 else ["one_device"]
        for strategy in strategies:
            ways = [way for way in arguments.ways if way not in TORCH_WAYS]
            if strategy == APART:
                ways = [way for way in ways if way == "tfdist"]
            found += [Job(way, strategy, processes) for way in ways]
        found += [Job(way, "ddp", processes) for way in arguments.ways if way in TORCH_WAYS]
    return found


def table(results: Results, peak: float, batch_size: int) -> list[str]:
    """Markdown, a row for each job."""
    header = (
        "job",
        "images/s (least to greatest)",
        "tfdist / it",
        "efficiency",
        "of peak",
        "bytes / least",
        "memory, MB",
        "to first step, s",
        "to exit, s",
    )
    lines = [" | ".join(header), " | ".join(["---"] * len(header))]
    for job, found in results.items():
        rates = [rate for result in found for rate in result.images_per_second]
        rate = statistics.median(rates)
        cells = [
            str(job),
            f"{rate:.1f} ({min(rates):.1f} to {max(rates):.1f})",
            against_tfdist(job, rate, results),
            efficiency(job, rate, results),
            f"{rate * arithmetic.flops_per_image() / (peak * cores_of(job)):.2f}",
            bytes_over_least(job, found),
            f"{statistics.median(result.peak_memory for result in found) / 1e6:.0f}",
            f"{statistics.median(result.seconds_to_first_step for result in found):.1f}",
            f"{statistics.median(result.seconds_to_exit for result in found):.1f}",
        ]
        lines.append(" | ".join(cells))
    return [f"| {line} |" for line in lines]


def median(found: Sequence[Result]) -> float:
    return statistics.median(rate for result in found for rate in result.images_per_second)


def cores_of(job: Job) -> int:
    """The cores that it can keep busy: each process by hand may take all of them."""
    return job.cores or len(os.sched_getaffinity(0))


def against_tfdist(job: Job, rate: float, results: Results) -> str:
    """The rate of tfdist over that of another way, for each of its strategies where it has many."""
    if job.way == "tfdist":
        return ""
    ratios = [
        median(found) / rate
        for other, found in results.items()
        if other.way == "tfdist"
        and other.strategy != APART
        and other.cores == job.cores
        and other.processes == job.processes
        and job.strategy in (other.strategy, "ddp")
    ]
    return ", ".join(f"{ratio:.2f}" for ratio in ratios)


def efficiency(job: Job, rate: float, results: Results) -> str:
    """The rate over that of one process with one core, for each core that the job can use."""
    if job.way != "tfdist" or ONE_CORE not in results:
        return ""
    cores = min(job.processes, cores_of(job)) if job.strategy != "one_device" else cores_of(job)
    return f"{rate / (cores * median(results[ONE_CORE])):.2f}"


def bytes_over_least(job: Job, found: Sequence[Result]) -> str:
    if job.processes == 1 or job.strategy == APART:
        return ""
    kind = "parameter_server" if job.strategy == "parameter_server" else "ring"
    sent = statistics.median(result.bytes_per_step for result in found)
    return f"{sent / arithmetic.least_bytes_per_step(kind, job.processes):.2f}"


def measured_peak() -> float:
    """FLOP/s of multiplying matrices on one core, with oneDNN."""
    core = str(min(os.sched_getaffinity(0)))
    printed = subprocess.run(
        ["taskset", "-c", core, sys.executable, "-m", "benchmarks.arithmetic"],
        env={**os.environ, ONEDNN: "1", "PYTHONPATH": str(ROOT)},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return float(printed.stdout)


def machine(peak: float) -> dict[str, object]:
    """What the figures are of."""
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    packages = ("tensorflow", "keras", "horovod", "torch")
    return {
        "cpu": models[0] if models else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "peak_flops_of_a_core": peak,
        "versions": {name: version(name) for name in packages if importlib.util.find_spec(name)},
    }


def plot(results: Results, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    lines: dict[str, list[tuple[int, float]]] = {}
    for job, found in results.items():
        if not job.cores and job.strategy != "one_device":
            label = f"{job.strategy}, {job.way}"
            lines.setdefault(label, []).append((job.processes, median(found)))
    for label, points in sorted(lines.items()):
        style = "-" if label.endswith("tfdist") else ":" if "torch" in label else "--"
        axes.plot(*zip(*sorted(points), strict=True), style, marker="o", label=label)
    axes.set_xlabel("processes")
    axes.set_ylabel("images/s")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
