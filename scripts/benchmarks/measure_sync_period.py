#!/usr/bin/env python
"""Compares local SGD (--sync_period) with an all-reduce in every step, on a slow network.

    scripts/benchmarks/measure_sync_period.py  # needs root, for network namespaces
    scripts/benchmarks/measure_sync_period.py --rate=100mbit --period=20 --strategy=horovod

Two machines, simulated by network namespaces with limited bandwidth, train a model with 1.1 million
parameters on digits. The images/s are those of the last epoch. The accuracy is that of a complete
training; the network does not change it, so it is measured without the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.namespaces import machines  # noqa: E402

PROGRAM = str(ROOT / "scripts" / "benchmarks" / "digits_mlp.py")
PORT = 2222
DEADLINE = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="multi_worker_mirrored")
    parser.add_argument("--rate", default="20mbit", help="bandwidth, as for `tc`")
    parser.add_argument("--period", type=int, default=50)
    parser.add_argument("--outer_momentum", type=float)
    arguments = parser.parse_args()
    local_sgd = [f"--sync_period={arguments.period}"]
    if arguments.outer_momentum is not None:
        local_sgd.append(f"--outer_momentum={arguments.outer_momentum}")
    with tempfile.TemporaryDirectory(prefix="tfdist-sync-period-") as directory:
        rates, accuracies = [], []
        for number, flags in enumerate(([], local_sgd)):
            path = Path(directory) / f"{number}"
            # The first epoch includes the startup. Local SGD is measured over a complete period.
            steps = arguments.period if flags else 5
            slow = [*flags, f"--steps={steps}", "--epochs=3"]
            log = run(path / "slow", arguments.strategy, slow, arguments.rate)
            rates.append(float(log[-1]["examples_per_second"]))
            run(path / "complete", arguments.strategy, flags, None)
            accuracy = json.loads((path / "complete" / "output" / "accuracy.json").read_text())
            accuracies.append(float(accuracy["accuracy"]))
            name = " ".join(flags) or "every step"
            print(
                f"{arguments.strategy}, {name}: {rates[-1]:.1f} images/s at {arguments.rate}, "
                f"accuracy {accuracies[-1]:.4f}",
                flush=True,
            )
    print(f"{rates[1] / rates[0]:.1f} times the images/s")
    return 0


def run(
    path: Path, strategy: str, flags: Sequence[str], rate: str | None
) -> list[dict[str, float]]:
    """Trains on two machines; returns the metrics log."""
    path.mkdir(parents=True)
    with machines(2, rate=rate) as both:
        hosts = ",".join(f"{machine.address}:{PORT}" for machine in both)
        started = []
        for index, machine in enumerate(both):
            command = [*machine.enter, sys.executable, PROGRAM, f"--strategy={strategy}", *flags]
            command += [f"--worker_hosts={hosts}", "--job_name=worker", f"--task_index={index}"]
            command += [f"--output_dir={path / 'output'}"]
            with (path / f"{index}.log").open("w") as output:
                started.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        try:
            codes = [process.wait(DEADLINE) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    if any(codes):
        sys.exit((path / "0.log").read_text() + (path / "1.log").read_text())
    lines = (path / "output" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
