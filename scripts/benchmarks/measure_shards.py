#!/usr/bin/env python
"""Disturbs a worker of asynchronous parameter servers, and counts the uses of each example.

    scripts/benchmarks/measure_shards.py                        # a slow worker
    scripts/benchmarks/measure_shards.py --kill_every=10 --epochs=40

A slow worker is stopped for four fifths of the time. The ideal time of its epoch is that in which
the workers of an undisturbed job would have made its steps, one of them at a fifth of its speed. A
killed worker is started again by the launcher.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from tfdist.coordination.liveness import activity

ROOT = Path(__file__).resolve().parents[2]
TRAINING = str(Path(__file__).with_name("shards_training.py"))
_PERIOD_SECONDS, _SHARE = 1.0, 0.2


Disturb = Callable[[subprocess.Popen[str]], None]


def pid_of(worker: int) -> int | None:
    """The process of a worker; no other job may run beside this one."""
    states = [record.state for record in activity.tasks_of_this_machine()]
    return next((state.pid for state in states if state.task == f"worker:{worker}"), None)


def pin(job: subprocess.Popen[str]) -> None:
    """Gives each worker a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    for worker, core in enumerate(cores):
        while (pid := pid_of(worker)) is None and job.poll() is None:
            time.sleep(0.1)
        time.sleep(1.0)  # It has all of its threads then.
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), [core])


def slow(job: subprocess.Popen[str]) -> None:
    """Stops worker 1 for four fifths of the time, until the job ends."""
    pin(job)
    while job.poll() is None:
        pid = pid_of(1)
        if pid is None:
            time.sleep(1.0)
            continue
        until = time.monotonic() + 5.0
        with suppress(ProcessLookupError):
            while time.monotonic() < until and job.poll() is None:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(_PERIOD_SECONDS * (1 - _SHARE))
                os.kill(pid, signal.SIGCONT)
                time.sleep(_PERIOD_SECONDS * _SHARE)


def killer(every: float, killed: list[float]) -> Disturb:
    """Kills worker 1 again and again."""

    def kill(job: subprocess.Popen[str]) -> None:
        time.sleep(every)
        while job.poll() is None:
            pid = pid_of(1)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(time.monotonic())
            time.sleep(every)

    return kill


def run(
    arguments: argparse.Namespace, shards: int, disturb: Disturb
) -> tuple[list[float], np.ndarray]:
    """Runs a job; returns the seconds of its epochs without the first, and the counts of each."""
    with tempfile.TemporaryDirectory(prefix="tfdist-shards-") as directory:
        result, output = Path(directory, "counts.npz"), Path(directory, "output")
        command = [sys.executable, "-m", "tfdist", "run", "--strategy=parameter_server", "--chief"]
        command += [f"--ps={arguments.ps}", f"--workers={arguments.workers}"]
        command += [
            f"--max_restarts={1000 if arguments.kill_every else 0}",
            "--restart_delay=0",
            TRAINING,
        ]
        command += [f"--data_shards={shards}", f"--epochs={arguments.epochs}"]
        command += [f"--examples={arguments.examples}", f"--work={arguments.work}"]
        command += [f"--result={result}", f"--output_dir={output}"]
        with Path(directory, "log").open("w+") as log:
            job = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, text=True, start_new_session=True
            )
            threading.Thread(target=disturb, args=[job], daemon=True).start()
            if job.wait():
                log.seek(0)
                raise SystemExit(log.read())
        lines = [json.loads(line) for line in (output / "metrics.jsonl").open()]
        times = [line["time"] for line in lines]
        print(lines[-1]["steps_by_worker"], flush=True)
        return list(np.diff(times)), np.load(result)["counts"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (
        ("workers", 2),
        ("ps", 2),
        ("epochs", 4),
        ("examples", 24_000),
        ("work", 6),
        ("shards", 48),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kill_every", type=float, help="seconds; none is killed by default")
    arguments = parser.parse_args()
    seconds, counts = run(arguments, arguments.shards, pin)
    alone = statistics.median(seconds)
    if (counts != 1).any():
        raise SystemExit(f"the counts are {np.unique(counts, return_counts=True)}")
    print(f"undisturbed: {alone:.2f} s per epoch")
    if arguments.kill_every:
        killed: list[float] = []
        seconds, counts = run(arguments, arguments.shards, killer(arguments.kill_every, killed))
        missing, more = int((counts < 1).sum()), int((counts > 1).sum())
        print(
            f"killed {len(killed)} times in {sum(seconds):.0f} s: of {counts.size:,} uses of an "
            f"example {missing} are missing and {more} are repeated; effective time "
            f"{alone * len(seconds) / sum(seconds):.2f}"
        )
        return
    workers = arguments.workers
    ideal = alone * workers / (workers - 1 + _SHARE)
    for shards in (workers, arguments.shards):
        seconds, counts = run(arguments, shards, slow)
        found = statistics.median(seconds)
        print(
            f"a slow worker, {shards} shards: {found:.2f} s per epoch, {found / ideal:.2f} of the "
            f"ideal; each example once: {bool((counts == 1).all())}"
        )


if __name__ == "__main__":
    main()
