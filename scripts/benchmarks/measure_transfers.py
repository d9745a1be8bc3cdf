#!/usr/bin/env python
"""Compares the bytes that the tasks of a training send with the formulas of `tfdist plan`.

    scripts/benchmarks/measure_transfers.py     # needs root, for network namespaces
    scripts/benchmarks/measure_transfers.py --split=parameter_server --ps=2 --workers=3 --sync
    scripts/benchmarks/measure_transfers.py --split=in_graph --workers=4 --stages=2

Each task of a perceptron's training runs on a machine of its own, which a network namespace
simulates. Two jobs train for different numbers of steps. The difference of the byte counters of a
machine's interface, divided by the difference of the steps, is what its task sends and receives in
a step of all replicas, with the headers of all packets. It does not contain the start and the
checkpoint, which are the same in both jobs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.namespaces import Machine, machines  # noqa: E402
from tests.support.processes import Tasks, run_by_hand  # noqa: E402
from tfdist.cluster import Cluster  # noqa: E402
from tfdist.planner import costs  # noqa: E402
from tfdist.planner.model import FLOAT_BYTES, Layer, Model  # noqa: E402

PROGRAM = str(ROOT / "scripts" / "benchmarks" / "transfers_training.py")
IN_MACHINE = str(ROOT / "tests" / "support" / "in_machine.py")
PORT = 2222
DEADLINE = 300.0  # seconds
HEADER = (
    "split",
    "workers",
    "busiest sends: measured",
    "formula",
    "ratio",
    "busiest receives: measured",
    "formula",
    "ratio",
    "all tasks: measured",
    "formula",
    "ratio",
)


@dataclass(frozen=True)
class Training:
    """A training of a perceptron without biases.

    Attributes:
      split: the value of `--strategy`.
      workers: the number of workers.
      ps: the number of parameter servers, for `parameter_server`.
      flags: more flags of the strategy.
      stages: the number of stages, for `in_graph`.
      microbatches: the number of microbatches, for `in_graph`.
      width: the inputs and the outputs of each layer.
      layers: the number of layers.
      batch_size: the examples of a replica in a step.
      optimizer: `sgd` or `adam`.
      steps: the steps of the shorter job.
      more_steps: the steps by which the other job is longer.
    """

    split: str
    workers: int = 2
    ps: int = 0
    flags: tuple[str, ...] = ()
    stages: int = 0
    microbatches: int | None = None
    width: int = 512
    layers: int = 4
    batch_size: int = 64
    optimizer: str = "sgd"
    steps: int = 5
    more_steps: int = 20

    def planned(self) -> costs.Candidate:
        """The split, as `tfdist plan` computes it."""
        row = FLOAT_BYTES * self.width
        layer = Layer(self.width * row, row, row)
        model = Model.of_layers([layer] * self.layers, row, row)
        job = costs.Training(
            model,
            self.workers,
            ps=self.ps,
            batch_size=self.batch_size,
            microbatches=self.microbatches,
        )
        if self.stages:
            return costs.in_graph(job, self.stages)
        if self.ps:
            return costs.parameter_server(job, is_synchronous="--sync" in self.flags)
        return costs.all_reduce(self.split, job)

    def tasks(self, found: Sequence[Machine], output: Path, steps: int) -> Tasks:
        """The tasks of a job, one for each machine: workers, then ps."""
        addresses = tuple(f"{machine.address}:{PORT}" for machine in found)
        cluster = Cluster(worker=addresses[: self.workers], ps=addresses[self.workers :])
        flags = [f"--strategy={self.split}", *self.flags, f"--output_dir={output}"]
        flags += [f"--width={self.width}", f"--layers={self.layers}", f"--steps={steps}"]
        flags += [f"--batch_size={self.batch_size}", f"--optimizer={self.optimizer}"]
        if self.stages:
            flags += self.planned().flags.split()[1:]
        task_at = {cluster.address(task): task for task in cluster.tasks()}
        tasks: Tasks = {}
        for address, machine in zip(addresses, found, strict=True):
            command = [sys.executable, IN_MACHINE, machine.name, PROGRAM]
            tasks[str(task_at[address])] = (
                [*command, *cluster.flags(task_at[address]), *flags],
                {},
            )
        return tasks


@dataclass(frozen=True)
class Traffic:
    """The bytes that each task has sent and received."""

    sent: Mapping[str, float] = field(default_factory=dict)
    received: Mapping[str, float] = field(default_factory=dict)

    def per_step_after(self, before: Traffic, steps: int) -> Traffic:
        """The bytes per step, of which `steps` were made since `before`."""
        return Traffic(
            {task: (self.sent[task] - before.sent[task]) / steps for task in self.sent},
            {task: (self.received[task] - before.received[task]) / steps for task in self.received},
        )


def measure(training: Training) -> Traffic:
    """The bytes that each task sends and receives in a step of all replicas.

    Raises:
      RuntimeError: a task failed or did not end; contains the ends of the logs.
    """
    few, many = (
        run(training, steps) for steps in (training.steps, training.steps + training.more_steps)
    )
    return many.per_step_after(few, training.more_steps)


def run(training: Training, steps: int) -> Traffic:
    """The bytes that each task sends and receives in a whole job.

    Raises:
      RuntimeError: a task failed or did not end; contains the ends of the logs.
    """
    with (
        machines(training.workers + training.ps) as found,
        tempfile.TemporaryDirectory(prefix="tfdist-transfers-") as directory,
    ):
        path = Path(directory)
        tasks = training.tasks(found, path / "output", steps)
        ended = run_by_hand(path / "logs", tasks, deadline=DEADLINE)
        if any(task.code for task in ended.values()):
            logs = "".join(f"{name}: {end.output[-2000:]}" for name, end in ended.items())
            raise RuntimeError(f"{training.split} failed:\n{logs}")
        both = {name: counters(machine) for name, machine in zip(tasks, found, strict=True)}
    return Traffic(
        {name: sent for name, (sent, _) in both.items()},
        {name: received for name, (_, received) in both.items()},
    )


def counters(machine: Machine) -> tuple[int, int]:
    """The bytes that a machine's interface has sent and received, with all headers."""
    command = ["ip", "-n", machine.name, "-s", "-j", "link", "show", "dev", "eth0"]
    (link,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return link["stats64"]["tx"]["bytes"], link["stats64"]["rx"]["bytes"]


def compared(split: costs.Candidate, traffic: Traffic) -> list[tuple[float, float]]:
    """Measured and computed bytes: what the busiest task sends, receives, and what all send."""
    return [
        (traffic.sent[split.busiest], split.sent),
        (traffic.received[split.busiest], split.received),
        (sum(traffic.sent.values()), split.traffic.total),
    ]


def row(training: Training) -> str:
    """Measures a training; a row of the table, in Markdown."""
    split = training.planned()
    cells = [f"`{split.flags}`", str(training.workers)]
    for measured, computed in compared(split, measure(training)):
        cells += [f"{measured:,.0f}", f"{computed:,.0f}", f"{measured / computed:.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--split", help="a strategy; default: all-reduce and parameter servers")
    parser.add_argument("--sync", action="store_true", help="for parameter_server")
    for name, default in (("workers", 2), ("ps", 1), ("width", 512), ("layers", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("batch_size", 64), ("steps", 5), ("more_steps", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    for name in ("stages", "microbatches"):
        parser.add_argument(f"--{name}", type=int, help="for in_graph")
    parser.add_argument("--horovod", action="store_true", help="measure horovod, too, by default")
    arguments = parser.parse_args()
    names = ("width", "layers", "batch_size", "optimizer", "steps", "more_steps")
    size = Training("", **{name: getattr(arguments, name) for name in names})
    if arguments.split is None:
        trainings = default_trainings(size, with_horovod=arguments.horovod)
    else:
        is_ps = arguments.split == "parameter_server"
        is_in_graph = arguments.split == "in_graph"
        trainings = [
            replace(
                size,
                split=arguments.split,
                workers=arguments.workers,
                ps=arguments.ps if is_ps else 0,
                flags=("--sync",) if arguments.sync else (),
                stages=(arguments.stages or 1) if is_in_graph else 0,
                microbatches=arguments.microbatches,
            )
        ]
    print(f"| {' | '.join(HEADER)} |\n|{' --- |' * len(HEADER)}", flush=True)
    for training in trainings:
        print(row(training), flush=True)


def default_trainings(size: Training, *, with_horovod: bool) -> list[Training]:
    """All-reduce and parameter servers, with two and three workers."""
    rings = ("multi_worker_mirrored", "horovod") if with_horovod else ("multi_worker_mirrored",)
    found = [replace(size, split=split, workers=count) for split in rings for count in (2, 3)]
    for flags in ((), ("--sync",)):
        found += [
            replace(size, split="parameter_server", workers=count, ps=ps, flags=flags)
            for count, ps in ((2, 1), (2, 2), (3, 1))
        ]
    return found


if __name__ == "__main__":
    main()
