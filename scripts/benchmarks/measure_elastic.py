#!/usr/bin/env python
"""Changes the number of workers of asynchronous parameter servers while they train.

    scripts/benchmarks/measure_elastic.py                  # 4, 8 and then 2 workers
    scripts/benchmarks/measure_elastic.py --workers=1,2

A worker prints when it reads a batch. For those that stay, the longest time between two batches
around each change is compared with the median of all.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TRAINING = str(Path(__file__).with_name("shards_training.py"))


def change(job: subprocess.Popen[str], hosts: Path, workers: Sequence[int], log: Path) -> None:
    """Changes the number of workers again and again, when all are there."""
    for now, after in itertools.pairwise(workers):
        while job.poll() is None and len(steps_in(log)) < now:
            time.sleep(0.5)
        time.sleep(15.0)
        new = hosts.with_suffix(".new")
        new.write_text(f"localhost:{after}\n")
        new.rename(hosts)
        print(f"{now} → {after} workers", flush=True)


def steps_in(log: Path) -> dict[str, list[float]]:
    """By worker, the times at which it has read a batch."""
    times = defaultdict(list)
    for line in log.read_text().splitlines():
        if found := re.match(r'\[(worker:\d+)\] reads at "(\S+)"$', line):
            times[found[1]].append(float(found[2]))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", default="4,8,2", help="the numbers of workers")
    parser.add_argument("--examples", type=int, default=80_000)
    parser.add_argument("--wait", type=float, default=0.2, help="seconds of a step")
    arguments = parser.parse_args()
    workers = [*map(int, arguments.workers.split(","))]
    with tempfile.TemporaryDirectory(prefix="tfdist-elastic-") as directory:
        hosts, log, result = (Path(directory, name) for name in ("hosts", "log", "counts.npz"))
        hosts.write_text(f"localhost:{workers[0]}\n")
        command = [sys.executable, "-m", "tfdist", "run", "--strategy=parameter_server", "--ps=1"]
        command += [f"--host_discovery_script=cat {hosts}", f"--max_workers={max(workers)}"]
        command += [f"--min_workers={min(workers)}", TRAINING, "--print_steps", "--work=1"]
        command += [f"--data_shards={4 * max(workers)}", "--epochs=1", f"--wait={arguments.wait}"]
        command += [f"--examples={arguments.examples}", f"--result={result}"]
        command += [f"--output_dir={directory}/output"]
        with log.open("w") as output:
            job = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, text=True)
            threading.Thread(target=change, args=[job, hosts, workers, log], daemon=True).start()
            if job.wait():
                raise SystemExit(log.read_text())
        times, counts = steps_in(log), np.load(result)["counts"]
        gaps = {name: np.diff(each) for name, each in times.items()}
        median = statistics.median(np.concatenate([*gaps.values()]))
        first, last = min(each[0] for each in times.values()), max(map(max, times.values()))
        for name, each in sorted(times.items()):
            stays = "" if each[0] > first + 5 or each[-1] < last - 5 else ", stays"
            print(
                f"{name}: {len(each)} steps, longest {gaps[name].max() / median:.2f} of them{stays}"
            )
        print(f"median step {median:.3f} s; each example once: {bool((counts == 1).all())}")


if __name__ == "__main__":
    main()
