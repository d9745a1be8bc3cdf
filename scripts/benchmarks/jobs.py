"""The jobs that the benchmark measures, and what is started for each.

job = Job("tfdist", "horovod", processes=2)
result = runs.run(job, directory, Size(batch_size=64, steps=20, epochs=4))
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.benchmarks import marks
from tfdist.cluster import Cluster
from tfdist.runtime.environment import CORES_VARIABLE

ROOT = Path(__file__).parents[2]
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
#: Trainings of one process and one core each, at the same time: the most that a machine lets
#: several processes do, which here have nothing to wait for.
APART = "apart"
#: PyTorch's order of an image's dimensions, and the one in which its CPU kernels are fastest.
TORCH_WAYS = ("torch", "torch_channels_last")
#: Who distributes: a script by hand with TensorFlow's defaults, or with oneDNN forced off or on;
#: tfdist; PyTorch.
WAYS = ("plain", "plain_without_onednn", "plain_with_onednn", "tfdist", *TORCH_WAYS)

Commands = list[tuple[Sequence[str], Mapping[str, str]]]


@dataclass(frozen=True)
class Size:
    """How much a job trains: images a process at a time, its steps in an epoch, and epochs."""

    batch_size: int
    steps: int
    epochs: int

    def flags(self) -> list[str]:
        return [
            f"--batch_size={self.batch_size}",
            f"--steps={self.steps}",
            f"--epochs={self.epochs}",
        ]


@dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
      way: one of `WAYS`.
      strategy: a name of tfdist's table; `ddp` for PyTorch; `APART`.
      processes: those that train.
      cores: those that the job may use, the first of this machine's; 0 for all.
      flags: more of them for `tfdist run`.
      environ: variables by name, beside those that its way wants.
      training_flags: more of them for the training by tfdist.
      checkout: where the tfdist is that trains; empty for this one.
    """

    way: str
    strategy: str
    processes: int
    cores: int = 0
    flags: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    training_flags: tuple[str, ...] = ()
    checkout: str = ""

    def __str__(self) -> str:
        cores = f" on {self.cores} core" if self.cores else ""
        checkout = f" of {self.checkout}" if self.checkout else ""
        return f"{self.strategy} x {self.processes}{cores}, {self.way}{checkout}"

    def with_training_flags(self, *flags: str) -> Job:
        """The same with more flags for the training by tfdist."""
        return replace(self, training_flags=(*self.training_flags, *flags))

    def commands(self, ports: Sequence[int], directory: Path, size: Size) -> Commands:
        """What to start, with variables by name, and first the one that ends when the job does.

        Args:
          ports: two more than processes.
          directory: an empty one, for what the job writes.
          size: how much it trains.
        """
        if self.way in TORCH_WAYS:
            torchrun = [sys.executable, "-m", "torch.distributed.run"]
            torchrun += [f"--nproc_per_node={self.processes}", f"--master_port={ports[0]}"]
            # torchrun's own choice for several processes is one, however many cores there are.
            threads = max(1, len(os.sched_getaffinity(0)) // self.processes)
            environ = {"OMP_NUM_THREADS": str(threads)}
            command = [*torchrun, _program("torch_ddp"), *size.flags()]
            channels_last = ["--channels_last"] if self.way == "torch_channels_last" else []
            return [([*command, *channels_last], environ)]
        if self.strategy == APART:
            return self._apart(directory, size)
        if self.way == "tfdist":
            # Before there was a `tfdist/__main__.py`, the command was in `tfdist/cli.py`.
            is_old = self.checkout and not Path(self.checkout, "tfdist/__main__.py").exists()
            run = [sys.executable, "-m", "tfdist.cli" if is_old else "tfdist"]
            run += [
                "run",
                f"--strategy={self.strategy}",
                f"--workers={self.processes}",
                *self.flags,
            ]
            if self.strategy == "parameter_server":
                run += ["--ps=1", "--chief"]
            own = [f"--output_dir={directory / 'output'}", *self.training_flags]
            if self.strategy == "parameter_server":
                own += ["--repeat"]  # As by hand, where it cannot be otherwise.
            found = {"PYTHONPATH": f"{self.checkout}{os.pathsep}{ROOT}"} if self.checkout else {}
            return [([*run, _program("with_tfdist"), *size.flags(), *own], found)]
        forced = {"plain_without_onednn": {ONEDNN: "0"}, "plain_with_onednn": {ONEDNN: "1"}}
        return self._plain(ports, size, forced.get(self.way, {}))

    def _apart(self, directory: Path, size: Size) -> Commands:
        commands: list[tuple[Sequence[str], Mapping[str, str]]] = []
        for place in range(self.processes):
            environ = {
                CORES_VARIABLE: f"{place}/{self.processes}",
                marks.VARIABLE: str(marks_of(directory, place)),
            }
            output = f"--output_dir={directory / f'output-{place}'}"
            command = [sys.executable, _program("with_tfdist"), *size.flags(), output]
            commands.append((command, environ))
        return commands

    def _plain(self, ports: Sequence[int], size: Size, environ: Mapping[str, str]) -> Commands:
        command = [sys.executable, _program(f"plain_{self.strategy}"), *size.flags()]
        if self.strategy == "one_device":
            return [(command, environ)]
        if self.strategy == "horovod":
            horovodrun = [str(Path(sys.executable).with_name("horovodrun")), "--gloo"]
            horovodrun += ["-np", str(self.processes), "-H", f"localhost:{self.processes}"]
            return [([*horovodrun, *command], environ)]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        has_ps = self.strategy == "parameter_server"
        cluster = Cluster(
            worker=tuple(addresses[: self.processes]),
            chief=tuple(addresses[-1:]) if has_ps else (),
            ps=tuple(addresses[self.processes : self.processes + 1]) if has_ps else (),
        )
        tasks = sorted(cluster.tasks(), key=lambda task: task != cluster.chief_task)
        return [(command, {"TF_CONFIG": cluster.tf_config(task), **environ}) for task in tasks]


def marks_of(directory: Path, place: int = 0) -> Path:
    """Where the marks are of a job with that directory; of a training apart, its place."""
    return directory / f"marks-{place}.json"


def _program(name: str) -> str:
    return str(ROOT / "scripts" / "benchmarks" / f"{name}.py")
