#!/usr/bin/env python
"""Compares tfdist with hand-written TensorFlow and PyTorch DDP, in turn in one run.

    scripts/benchmarks/benchmark.py --json=results.json --plot=speed.png
    scripts/benchmarks/benchmark.py --strategies horovod --processes 2 --rounds=2 --steps=4

All jobs train the same model, by default ResNet-20, with the same batch size per process, on noise
in memory. `--precision` compares PyTorch's autocast and Keras's policies, too.
All jobs with the same strategy and number of processes run at the same time and take turns: each
trains one epoch per round, after a warm-up epoch. The figures are the median, minimum and maximum
over the rounds. A ratio compares the epochs of one round, because the speed of a shared machine
changes from minute to minute. `apart` is one independent training per process, each on its own
core. The memory does not include mapped files, such as libraries. The bytes are those sent over the
loopback interface, so the machine must be otherwise idle.
PyTorch is measured if it is installed (`pip install torch`). If a job fails, its log is printed,
the job is left out, and the exit code is 1.
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
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks import arithmetic  # noqa: E402
from scripts.benchmarks.jobs import APART, ONEDNN, TORCH_WAYS, WAYS, Job, Size  # noqa: E402
from scripts.benchmarks.runs import Result, exit_on_sigterm, run_in_turn  # noqa: E402

PRECISIONS = ("float32", "mixed_bfloat16")
STRATEGIES = ("multi_worker_mirrored", "horovod", "parameter_server")
ONE_CORE = Job("tfdist", "one_device", 1, cores=1)

#: The results of the jobs that trained in turn.
Results = dict[Job, Result]


def main() -> None:
    arguments = parse()
    # Otherwise a suspended job that waits for its turn would be left.
    exit_on_sigterm()
    size = Size(arguments.batch_size, arguments.steps, arguments.rounds + 1, arguments.num_layers)
    peak, has_failed = measured_peak(), False
    print(
        f"{os.cpu_count()} cores; one core multiplies matrices at {peak / 1e9:.0f} GFLOP/s",
        flush=True,
    )
    found = []
    for group in groups(arguments):
        with tempfile.TemporaryDirectory(prefix="tfdist-benchmark-") as directory:
            results = run_in_turn({job: job for job in group}, Path(directory), size)
        has_failed |= len(results) < len(group)
        print("\n".join(table(results, peak, size.num_layers)), end="\n\n", flush=True)
        found.append(results)
    if arguments.json:
        lines = [
            [{**asdict(job), **asdict(result)} for job, result in results.items()]
            for results in found
        ]
        content = {"machine": machine(peak), "size": asdict(size), "in_turn": lines}
        Path(arguments.json).write_text(json.dumps(content, indent=2) + "\n")
    if arguments.plot:
        plot(found, Path(arguments.plot))
    sys.exit(1 if has_failed else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2, 4], metavar="N")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=default_ways())
    for name, default in (("rounds", 8), ("batch_size", 64), ("steps", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--num_layers", type=int, default=20, help="layers of the ResNet")
    parser.add_argument("--model", choices=arithmetic.MODELS, default="resnet20")
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=["float32"], help="all in turn"
    )
    parser.add_argument("--json", help="JSON file for all figures")
    parser.add_argument("--plot", help="image file for a plot of images/s")
    return parser.parse_args()


def default_ways() -> list[str]:
    has_torch = importlib.util.find_spec("torch") is not None
    return [way for way in WAYS if way not in TORCH_WAYS or has_torch]


def groups(arguments: argparse.Namespace) -> list[list[Job]]:
    """Groups of jobs to compare; the jobs of a group train in turn."""
    found = []
    for processes in arguments.processes:
        for strategy in arguments.strategies if processes > 1 else ["one_device"]:
            jobs = [ONE_CORE] if "tfdist" in arguments.ways else []
            if jobs and processes > 1:
                jobs.append(Job("tfdist", APART, processes))
            for way in arguments.ways:
                jobs.append(Job(way, "ddp" if way in TORCH_WAYS else strategy, processes))
            found.append(
                [
                    with_model(job, precision, arguments.model)
                    for precision in arguments.precision
                    for job in jobs
                ]
            )
    return found


def with_model(job: Job, precision: str, model: str) -> Job:
    """A job that trains another model, or in another precision."""
    if model != "resnet20":
        job = job.with_training_flags(f"--model={model}")
    return replace(job, precision="" if precision == "float32" else precision)


def table(results: Results, peak: float, num_layers: int) -> list[str]:
    """A Markdown table with one row per job."""
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
    for job, result in results.items():
        of_peak = ""
        if not job.training_flags:  # ResNet.
            achieved = result.median * arithmetic.flops_per_image(num_layers)
            of_peak = f"{achieved / (peak * cores_of(job)):.2f}"
        cells = [
            str(job),
            spread(result.images_per_second, ".1f"),
            against_tfdist(job, results),
            efficiency(job, results),
            of_peak,
            bytes_over_least(job, result, num_layers),
            f"{result.peak_memory / 1e6:.0f}",
            f"{result.seconds_to_first_step:.1f}",
            f"{result.seconds_to_exit:.1f}",
        ]
        lines.append(" | ".join(cells))
    return [f"| {line} |" for line in lines]


def spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def cores_of(job: Job) -> int:
    """The number of cores that the job can use; a hand-written process may use all of them."""
    return job.cores or len(os.sched_getaffinity(0))


def against_tfdist(job: Job, results: Results) -> str:
    """The images/s of tfdist divided by those of another way."""
    by_tfdist = [
        result
        for other, result in results.items()
        if other.way == "tfdist"
        and other.strategy != APART
        and not other.cores
        and other.precision == job.precision
    ]
    if job.way == "tfdist" or not by_tfdist:
        return ""
    return spread(by_tfdist[0].ratios(results[job]), ".2f")


def efficiency(job: Job, results: Results) -> str:
    """The images/s per core, divided by those of one process on one core."""
    one_core = replace(job, strategy="one_device", processes=1, cores=1)
    if job.way != "tfdist" or one_core not in results:
        return ""
    cores = min(job.processes, cores_of(job)) if job.strategy != "one_device" else cores_of(job)
    return spread([ratio / cores for ratio in results[job].ratios(results[one_core])], ".2f")


def bytes_over_least(job: Job, result: Result, num_layers: int) -> str:
    if job.processes == 1 or job.strategy == APART or job.training_flags:
        return ""
    kind = "parameter_server" if job.strategy == "parameter_server" else "ring"
    least = arithmetic.least_bytes_per_step(kind, job.processes, num_layers)
    return f"{result.bytes_per_step / least:.2f}"


def measured_peak() -> float:
    """FLOP/s of matrix multiplication on one core, with oneDNN."""
    core = str(min(os.sched_getaffinity(0)))
    printed = subprocess.run(
        ["taskset", "-c", core, sys.executable, "-m", "scripts.benchmarks.arithmetic"],
        env={**os.environ, ONEDNN: "1", "PYTHONPATH": str(ROOT)},
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return float(printed.stdout)


def machine(peak: float) -> dict[str, object]:
    """A description of this machine and the installed packages."""
    models = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    packages = ("tensorflow", "keras", "horovod", "torch")
    return {
        "cpu": models[0] if models else "unknown",
        "cores": len(os.sched_getaffinity(0)),
        "peak_flops_of_a_core": peak,
        "versions": {name: version(name) for name in packages if importlib.util.find_spec(name)},
    }


def plot(found: Sequence[Results], path: Path) -> None:
    """Plots one group of bars per group of jobs, with one color per way."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = list(dict.fromkeys(bar_of(job) for results in found for job in results))
    width = 0.9 / len(bars)
    figure, axes = plt.subplots(figsize=(4 + 2 * len(found), 5))
    for index, bar in enumerate(bars):
        drawn = [
            (group + index * width, result)
            for group, results in enumerate(found)
            for job, result in results.items()
            if bar_of(job) == bar
        ]
        medians = [result.median for _, result in drawn]
        below = [result.median - min(result.images_per_second) for _, result in drawn]
        above = [max(result.images_per_second) - result.median for _, result in drawn]
        axes.bar([x for x, _ in drawn], medians, width, yerr=[below, above], capsize=2, label=bar)
    axes.set_xticks(
        [group + (len(bars) - 1) * width / 2 for group in range(len(found))],
        [f"{strategy} x {processes}" for strategy, processes in map(compared, found)],
    )
    axes.set_ylabel("images/s, median and range")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def bar_of(job: Job) -> str:
    """The label of a job in the legend."""
    name = f"{job.way}, {APART}" if job.strategy == APART else job.way
    name = "tfdist, one core" if job.cores else name
    return f"{name}, {job.precision}" if job.precision else name


def compared(results: Results) -> tuple[str, int]:
    """The strategy of a group, and its number of processes; for labels."""
    *_, last = results
    strategies = [job.strategy for job in results if not job.cores and job.strategy != APART]
    return next((name for name in strategies if name != "ddp"), last.strategy), last.processes


if __name__ == "__main__":
    main()
