#!/usr/bin/env python
"""Measures what `tfdist exec --tls` costs: the same jobs with and without it.

    scripts/benchmarks/measure_tls.py
    scripts/benchmarks/measure_tls.py --strategies parameter_server --models mlp --rounds=2

Each job has two workers on this machine, and under `parameter_server` a chief and a ps. `mlp` is so
small that the time of its step is that of the messages. The jobs of a row take turns, one epoch
each, after a warm-up epoch, and a ratio compares the epochs of one turn. The figures are the
median, least and greatest over the turns. A step is that of all workers together. The processes
that exchange the packets share the cores with the training. Needs /dev/net/tun.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scripts.benchmarks.jobs import Commands, Job, Size  # noqa: E402
from scripts.benchmarks.runs import exit_on_sigterm, run_in_turn  # noqa: E402
from tfdist.coordination.seal import TOKEN_VARIABLE  # noqa: E402
from tfdist.process.cores import CORES_VARIABLE  # noqa: E402

STRATEGIES = ("multi_worker_mirrored", "horovod", "parameter_server")
#: The models, with the batch size of a worker and the steps of an epoch.
MODELS = {"resnet20": (32, 10), "mlp": (16, 200)}
WORKERS = 2


@dataclass(frozen=True)
class TaskByTask(Job):
    """A job whose tasks are started by `tfdist exec` with TF_CONFIG.

    Attributes:
      tls: whether they connect to each other over TLS.
    """

    tls: bool = False

    def commands(self, ports: Sequence[int], directory: Path, size: Size) -> Commands:
        cluster, tasks = self.cluster(ports)
        execute = [sys.executable, "-m", "tfdist", "exec", f"--strategy={self.strategy}"]
        execute += ["--cluster_as=tf_config", *(["--tls"] if self.tls else [])]
        script = [str(ROOT / "scripts" / "benchmarks" / "with_tfdist.py"), *size.flags()]
        script += [f"--output_dir={directory / 'output'}", *self.training_flags]
        if cluster.ps:
            script += ["--repeat"]
        commands: Commands = []
        for task in tasks:
            environ = {"TF_CONFIG": cluster.tf_config(task), TOKEN_VARIABLE: "measured"}
            if task.type == "worker":
                environ[CORES_VARIABLE] = f"{task.index}/{WORKERS}"
            commands.append(([*execute, *script], environ))
        return commands


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES), choices=STRATEGIES)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    print("| strategy | model | ms a step | with --tls | times (least to greatest) |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    code = 0
    for model in options.models:
        batch_size, steps = MODELS[model]
        size = Size(batch_size, steps, options.rounds + 1)
        for strategy in options.strategies:
            jobs = {
                tls: TaskByTask(
                    "tfdist", strategy, WORKERS, training_flags=(f"--model={model}",), tls=tls
                )
                for tls in (False, True)
            }
            with tempfile.TemporaryDirectory(prefix="tfdist-tls-") as directory:
                results = run_in_turn(jobs, Path(directory), size)
            if len(results) < len(jobs):
                code = 1
                continue
            plain, tls = (
                [1e3 * WORKERS * batch_size / rate for rate in results[each].images_per_second]
                for each in (False, True)
            )
            ratios = sorted(after / before for before, after in zip(plain, tls, strict=True))
            times = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            row = f"| {strategy} | {model} | {statistics.median(plain):.1f}"
            print(f"{row} | {statistics.median(tls):.1f} | {times} |", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
