#!/usr/bin/env python
"""Measures `parameter_server --sync`: its speed, and what backup workers gain with a slow worker.

    scripts/benchmarks/measure_parameter_server_sync.py                # both
    scripts/benchmarks/measure_parameter_server_sync.py speed --rounds=8
    scripts/benchmarks/measure_parameter_server_sync.py backups --slowdown=5

`speed` trains ResNet-20 with two workers under multi_worker_mirrored, and under parameter_server
with and without --sync; the jobs take turns as in `benchmark.py`. `backups` trains with three
workers, one of which gets one `slowdown`th of the time of its core, and compares
--replicas_to_aggregate=3 and 2. Its images/s are those of the batches of all three workers.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.jobs import Job, Size  # noqa: E402
from scripts.benchmarks.runs import Run, exit_on_sigterm, run_in_turn  # noqa: E402
from tests.support.processes import tasks_of  # noqa: E402

ALL_REDUCE = Job("tfdist", "multi_worker_mirrored", 2)
ASYNCHRONOUS = Job("tfdist", "parameter_server", 2)
SYNCHRONOUS = ASYNCHRONOUS.with_training_flags("--sync")
_PERIOD_SECONDS = 0.05  # of the slow worker: it runs for a part of it
# The slow worker, and its position among the tasks of `tfdist run`: chief, workers, ps.
_SLOW_WORKER, _SLOW_TASK = "worker:2", 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", choices=("speed", "backups"))
    for name, default in (("rounds", 8), ("batch_size", 64), ("steps", 15), ("slowdown", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    exit_on_sigterm()
    size = Size(arguments.batch_size, arguments.steps, arguments.rounds + 1)
    if arguments.part != "backups":
        measure_speed(size)
    if arguments.part != "speed":
        measure_backups(size, arguments.slowdown)


def measure_speed(size: Size) -> None:
    jobs = {
        "multi_worker_mirrored": ALL_REDUCE,
        "parameter_server": ASYNCHRONOUS,
        "parameter_server --sync": SYNCHRONOUS,
    }
    with tempfile.TemporaryDirectory(prefix="tfdist-sync-") as directory:
        results = run_in_turn(jobs, Path(directory), size)
    all_reduce = results["multi_worker_mirrored"]
    for name, result in results.items():
        ratios = result.ratios(all_reduce)
        print(
            f"{name}, 2 workers: {result.median:.1f} images/s, {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}) times multi_worker_mirrored",
            flush=True,
        )


def measure_backups(size: Size, slowdown: int) -> None:
    medians = []
    for replicas in (3, 2):
        flags = ("--sync", f"--replicas_to_aggregate={replicas}")
        job = Job("tfdist", "parameter_server", 3).with_training_flags(*flags)
        with (
            tempfile.TemporaryDirectory(prefix="tfdist-sync-") as directory,
            contextlib.closing(Run(job, Path(directory), size)) as running,
            slowed(running, Path(directory), slowdown),
        ):
            result = running.result()
        medians.append(result.median)
        print(
            f"{' '.join(flags)}, 3 workers, one {slowdown} times as slow: {result.median:.1f} "
            "images/s",
            flush=True,
        )
    print(f"backup worker: {medians[1] / medians[0]:.2f} times the speed")


@contextlib.contextmanager
def slowed(running: Run, directory: Path, slowdown: int) -> Iterator[None]:
    """Suspends a worker for all but one `slowdown`th of the time, once it has started."""
    has_ended = threading.Event()

    def has_started() -> bool:
        return any(f"{_SLOW_WORKER} serves" in log.read_text() for log in directory.glob("*.log"))

    def alternate() -> None:
        while not has_ended.is_set() and not has_started():
            time.sleep(_PERIOD_SECONDS)
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            task = tasks_of(running.launcher)[_SLOW_TASK]
            while not has_ended.is_set():
                task.suspend()
                time.sleep(_PERIOD_SECONDS * (1 - 1 / slowdown))
                task.resume()
                time.sleep(_PERIOD_SECONDS / slowdown)

    thread = threading.Thread(target=alternate)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()


if __name__ == "__main__":
    main()
