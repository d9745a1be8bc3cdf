#!/usr/bin/env python
"""Compares the tfdist of this checkout with that of another checkout, in turn.

    git worktree add /tmp/before 7aecdb8
    scripts/benchmarks/measure_change.py /tmp/before
    scripts/benchmarks/measure_change.py /tmp/before --strategies horovod --rounds=4

The two jobs take turns, one epoch each, as in `benchmark.py`. Prints the images/s of both and the
median ratio over the rounds for each strategy. The exit code is 1 if a job failed, or if a ratio is
below `--least`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.jobs import Job, Size  # noqa: E402
from scripts.benchmarks.runs import exit_on_sigterm, run_in_turn  # noqa: E402

STRATEGIES = {
    "one_device": 1,
    "mirrored": 1,
    "central_storage": 1,
    "multi_worker_mirrored": 2,
    "horovod": 2,
    "parameter_server": 2,
    "in_graph": 2,
}
DEVICES = ("--num_cpu_devices=2",)


def main() -> None:
    arguments = parse()
    exit_on_sigterm()
    size = Size(arguments.batch_size, arguments.steps, arguments.rounds + 1)
    header = ("strategy", "before, images/s", "after", "after / before", "first step, s", "exit, s")
    print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}", flush=True)
    is_slower = False
    for strategy in arguments.strategies:
        flags = DEVICES if strategy in ("mirrored", "central_storage") else ()
        after = Job("tfdist", strategy, STRATEGIES[strategy], training_flags=flags)
        before = Job(
            "tfdist",
            strategy,
            STRATEGIES[strategy],
            training_flags=flags,
            checkout=str(arguments.before.resolve()),
        )
        with tempfile.TemporaryDirectory(prefix="tfdist-change-") as directory:
            results = run_in_turn({"before": before, "after": after}, Path(directory), size)
        if len(results) < 2:
            sys.exit(1)
        old, new = results["before"], results["after"]
        ratio = statistics.median(new.ratios(old))
        is_slower |= ratio < arguments.least
        cells = (
            strategy,
            f"{old.median:.1f}",
            f"{new.median:.1f}",
            f"{ratio:.3f}",
            f"{old.seconds_to_first_step:.1f} to {new.seconds_to_first_step:.1f}",
            f"{old.seconds_to_exit:.1f} to {new.seconds_to_exit:.1f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    sys.exit(1 if is_slower else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", type=Path, help="the directory of the other checkout")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument("--least", type=float, default=0.98, help="the minimum ratio")
    for name, default in (("rounds", 12), ("batch_size", 64), ("steps", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


if __name__ == "__main__":
    main()
