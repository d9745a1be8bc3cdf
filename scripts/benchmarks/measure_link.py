#!/usr/bin/env python
"""Measures a training of two machines over a slow link.

    scripts/benchmarks/measure_link.py     # needs root, for network namespaces
    scripts/benchmarks/measure_link.py --rates 1gbit --jobs tfdist/horovod torch/ddp

Each of two tasks has one core and a machine of its own, which a network namespace simulates. The
model sends 26 MB of gradients in a step. A job is a way and a strategy; `plain` is the hand-written
script. `none` is a link without a limit. Prints the median milliseconds of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks import marks  # noqa: E402
from tests.support.namespaces import Machine, machines  # noqa: E402
from tests.support.processes import Tasks, run_by_hand  # noqa: E402
from tfdist.cluster import Cluster  # noqa: E402

IN_MACHINE = str(ROOT / "tests" / "support" / "in_machine.py")
JOBS = (
    "plain/multi_worker_mirrored",
    "tfdist/multi_worker_mirrored",
    "tfdist/horovod",
    "torch/ddp",
)
PORT = 2222
DEADLINE = 600.0  # seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--rates", nargs="+", default=["none", "1gbit"])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS))
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--flags", nargs="*", default=[], help="more flags of the tfdist jobs")
    parser.add_argument("--bucket_cap_mb", type=float, default=25.0, help="PyTorch's buckets")
    options = parser.parse_args()
    print("| rate | job | ms a step | images/s |\n| --- | --- | --- | --- |", flush=True)
    for rate in options.rates:
        for job in options.jobs:
            seconds = measure(job, None if rate == "none" else rate, options)
            images = 2 * options.batch_size / seconds
            print(f"| {rate} | {job} | {1e3 * seconds:.0f} | {images:.0f} |", flush=True)
    return 0


def measure(job: str, rate: str | None, options: argparse.Namespace) -> float:
    """The median seconds of a step, without those of the first epoch."""
    with (
        machines(2, rate, "512kb") as found,
        tempfile.TemporaryDirectory(prefix="tfdist-link-") as directory,
    ):
        path = Path(directory)
        tasks = tasks_of(job, found, path, options)
        ended = run_by_hand(path / "logs", tasks, deadline=DEADLINE, copies=False)
        if any(task.code for task in ended.values()):
            sys.exit("".join(f"{name}: {end.output[-3000:]}" for name, end in ended.items()))
        epochs = json.loads((path / "marks.json").read_text())["epochs"][1:]
    return statistics.median(epoch["end"] - epoch["begin"] for epoch in epochs) / options.steps


def tasks_of(job: str, found: Sequence[Machine], path: Path, options: argparse.Namespace) -> Tasks:
    """A task on each machine, each with a core of its own."""
    way, strategy = job.split("/")
    cluster = Cluster(worker=tuple(f"{machine.address}:{PORT}" for machine in found))
    size = [f"--batch_size={options.batch_size}", f"--steps={options.steps}", "--epochs=4"]
    cores = sorted(os.sched_getaffinity(0))
    tasks: Tasks = {}
    for rank, (task, machine) in enumerate(zip(cluster.tasks(), found, strict=True)):
        environ = {"PYTHONPATH": str(ROOT), marks.VARIABLE: str(path / "marks.json")}
        if way == "torch":
            program, flags = "torch_ddp", [f"--bucket_cap_mb={options.bucket_cap_mb}"]
            environ |= {"MASTER_ADDR": found[0].address, "MASTER_PORT": str(PORT)}
            environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "GLOO_SOCKET_IFNAME": "eth0"}
            environ["OMP_NUM_THREADS"] = "1"
        elif way == "plain":
            program, flags = f"plain_{strategy}", []
            environ["TF_CONFIG"] = cluster.tf_config(task)
        else:
            program, flags = "with_tfdist", [f"--output_dir={path / 'output'}", *options.flags]
            flags += [f"--strategy={strategy}", *cluster.flags(task)]
        program = str(ROOT / "scripts" / "benchmarks" / f"{program}.py")
        command = ["taskset", "-c", str(cores[rank % len(cores)]), sys.executable, IN_MACHINE]
        command += [machine.name, program, *size, "--model=vgg", *flags]
        tasks[str(task)] = (command, environ)
    return tasks


if __name__ == "__main__":
    sys.exit(main())
