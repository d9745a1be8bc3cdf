"""Measures the duration of the startup barrier on this machine, with one process per task.

python scripts/benchmarks/measure_startup.py 2 4 8 16
python scripts/benchmarks/measure_startup.py --late=3 16  # the last task starts 3 s late

Prints, for each number of tasks, the seconds from the start of the last task at the barrier until
every task has passed the barrier and closed its port.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tfdist.cluster import Cluster, Task  # noqa: E402
from tfdist.coordination.startup import BarrierConfig, Hello, wait_at_barrier  # noqa: E402
from tfdist.tools.launch.local import hold_ports  # noqa: E402


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_RawFormatter)
    parser.add_argument("tasks", type=int, nargs="*", default=[2, 4, 8, 16], metavar="N")
    parser.add_argument(
        "--late", type=float, default=0.0, metavar="S", help="delay of the last task, in seconds"
    )
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="R", help="number of runs (default 3)"
    )
    parser.add_argument("--as_task", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.as_task:
        return run_task(Cluster(**json.loads(arguments.as_task[0])), int(arguments.as_task[1]))
    for count in arguments.tasks:
        measured = [measure(count, arguments.late) for _ in range(arguments.repeat)]
        print(f"{count} tasks: {', '.join(f'{seconds:.2f}' for seconds in measured)} s", flush=True)
    return 0


class _RawFormatter(argparse.RawDescriptionHelpFormatter):
    pass


def measure(count: int, late: float) -> float:
    """Seconds from the start of the last task until all tasks have passed the barrier."""
    with hold_ports(count) as ports:
        cluster = Cluster(worker=tuple(f"127.0.0.1:{port}" for port in ports))
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--as_task", json.dumps(cluster.jobs()), str(index)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for index in range(count)
        ]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        *early, last = processes
        for process in early:
            _go(process)
        time.sleep(late)
        _go(last)
        results = [process.stdout.readline() for process in processes if process.stdout]
        for process, result in zip(processes, results, strict=True):
            rest, _ = process.communicate()
            if process.returncode:
                raise RuntimeError(f"a task failed:\n{result}{rest}")
        times = list(map(json.loads, results))
    return max(end for _, end in times) - max(begin for begin, _ in times)


def run_task(cluster: Cluster, index: int) -> int:
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    outcome = wait_at_barrier(
        BarrierConfig(
            Hello(
                cluster=cluster,
                task=Task("worker", index),
                strategy="multi_worker_mirrored",
                versions={},
            ),
            timeout=60.0,
        )
    )
    # All processes share the monotonic clock.
    print(outcome if outcome.verdict else json.dumps([begin, time.monotonic()]), flush=True)
    # Wait before exiting: an interpreter's exit takes CPU time from tasks still at the barrier.
    sys.stdin.readline()
    return 1 if outcome.verdict else 0


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


if __name__ == "__main__":
    sys.exit(main())
