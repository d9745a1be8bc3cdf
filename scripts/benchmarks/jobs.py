"""The jobs that the benchmarks measure, and their commands.

job = Job("tfdist", "horovod", processes=2)
result = runs.run(job, directory, Size(batch_size=64, steps=20, epochs=4))
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scripts.benchmarks import arithmetic, marks
from tfdist.cluster import Cluster, Task
from tfdist.process.cores import CORES_VARIABLE

ROOT = Path(__file__).parents[2]
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
#: Simultaneous trainings with one process and one core each. They do not wait for each other, so
#: this is the maximum speed of several processes on a machine.
APART = "apart"
#: PyTorch's default memory format, and the one with the fastest CPU kernels.
TORCH_WAYS = ("torch", "torch_channels_last")
#: Implementations: hand-written TensorFlow with the default for oneDNN, without it or with it;
#: tfdist; PyTorch.
WAYS = ("plain", "plain_without_onednn", "plain_with_onednn", "tfdist", *TORCH_WAYS)

Commands = list[tuple[Sequence[str], Mapping[str, str]]]


@dataclass(frozen=True)
class Size:
    """The size of a training: batch size per process, steps per epoch, epochs, ResNet layers."""

    batch_size: int
    steps: int
    epochs: int
    num_layers: int = arithmetic.NUM_LAYERS

    def flags(self) -> list[str]:
        flags = [
            f"--batch_size={self.batch_size}",
            f"--steps={self.steps}",
            f"--epochs={self.epochs}",
        ]
        # Older checkouts do not have this flag.
        if self.num_layers != arithmetic.NUM_LAYERS:
            flags.append(f"--num_layers={self.num_layers}")
        return flags


@dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
      way: one of `WAYS`.
      strategy: a strategy of tfdist; `ddp` for PyTorch; `APART`.
      processes: the number of training processes.
      cores: the number of cores that the job may use; 0 for all.
      flags: additional flags of `tfdist run`.
      environ: additional environment variables.
      training_flags: additional flags of the script that trains.
      checkout: the directory of another checkout of tfdist; empty for this one.
      precision: `--precision` of tfdist, the policy of hand-written Keras, or that of PyTorch's
        autocast; empty for float32.
    """

    way: str
    strategy: str
    processes: int
    cores: int = 0
    flags: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    training_flags: tuple[str, ...] = ()
    checkout: str = ""
    precision: str = ""

    def __str__(self) -> str:
        cores = f" on {self.cores} core" if self.cores else ""
        checkout = f" of {self.checkout}" if self.checkout else ""
        precision = f", {self.precision}" if self.precision else ""
        return f"{self.strategy} x {self.processes}{cores}, {self.way}{checkout}{precision}"

    def with_training_flags(self, *flags: str) -> Job:
        """This job with additional flags of the script that trains."""
        return replace(self, training_flags=(*self.training_flags, *flags))

    def commands(self, ports: Sequence[int], directory: Path, size: Size) -> Commands:
        """The commands to start, and their environment variables.

        The first command exits when the job has completed.

        Args:
          ports: free ports, two more than `processes`.
          directory: an empty directory for the output.
          size: the size of the training.
        """
        if self.way in TORCH_WAYS:
            torchrun = [sys.executable, "-m", "torch.distributed.run"]
            torchrun += [f"--nproc_per_node={self.processes}", f"--master_port={ports[0]}"]
            # With several processes, torchrun sets one thread by default, regardless of the cores.
            threads = max(1, len(os.sched_getaffinity(0)) // self.processes)
            environ = {"OMP_NUM_THREADS": str(threads)}
            command = [*torchrun, _program("torch_ddp"), *size.flags()]
            command += ["--channels_last"] if self.way == "torch_channels_last" else []
            command += [f"--autocast={self.precision}"] if self.precision else []
            return [([*command, *self.training_flags], environ)]
        if self.strategy == APART:
            return self._apart(directory, size)
        if self.way == "tfdist":
            # Before there was a `tfdist/__main__.py`, the command was in `tfdist/cli.py`.
            is_old = self.checkout and not Path(self.checkout, "tfdist/__main__.py").exists()
            # -P: do not import the tfdist of the current directory.
            run = [sys.executable, "-P", "-m", "tfdist.cli" if is_old else "tfdist"]
            run += [
                "run",
                f"--strategy={self.strategy}",
                f"--workers={self.processes}",
                *self.flags,
                *([f"--precision={self.precision}"] if self.precision else []),
            ]
            if self.strategy == "parameter_server":
                run += ["--ps=1", "--chief"]
            own = [f"--output_dir={directory / 'output'}", *self.training_flags]
            if self.strategy == "parameter_server":
                own += ["--repeat"]  # As in the hand-written script, which needs it.
            environ = {"PYTHONPATH": os.pathsep.join(filter(None, [self.checkout, str(ROOT)]))}
            return [([*run, _program("with_tfdist"), *size.flags(), *own], environ)]
        forced = {"plain_without_onednn": {ONEDNN: "0"}, "plain_with_onednn": {ONEDNN: "1"}}
        return self._plain(ports, size, forced.get(self.way, {}))

    def _apart(self, directory: Path, size: Size) -> Commands:
        commands: list[tuple[Sequence[str], Mapping[str, str]]] = []
        for index in range(self.processes):
            environ = {
                CORES_VARIABLE: f"{index}/{self.processes}",
                marks.VARIABLE: str(marks_of(directory, index)),
            }
            output = f"--output_dir={directory / f'output-{index}'}"
            command = [sys.executable, _program("with_tfdist"), *size.flags(), output]
            commands.append((command, environ))
        return commands

    def _plain(self, ports: Sequence[int], size: Size, environ: Mapping[str, str]) -> Commands:
        command = [sys.executable, _program(f"plain_{self.strategy}"), *size.flags()]
        command += self.training_flags
        command += [f"--policy={self.precision}"] if self.precision else []
        if self.strategy == "one_device":
            return [(command, environ)]
        if self.strategy == "horovod":
            horovodrun = [str(Path(sys.executable).with_name("horovodrun")), "--gloo"]
            horovodrun += ["-np", str(self.processes), "-H", f"localhost:{self.processes}"]
            return [([*horovodrun, *command], environ)]
        cluster, tasks = self.cluster(ports)
        return [(command, {"TF_CONFIG": cluster.tf_config(task), **environ}) for task in tasks]

    def cluster(self, ports: Sequence[int]) -> tuple[Cluster, list[Task]]:
        """The cluster of tasks that are started one by one, and the tasks, the chief first."""
        addresses = [f"127.0.0.1:{port}" for port in ports]
        has_ps = self.strategy == "parameter_server"
        cluster = Cluster(
            worker=tuple(addresses[: self.processes]),
            chief=tuple(addresses[-1:]) if has_ps else (),
            ps=tuple(addresses[self.processes : self.processes + 1]) if has_ps else (),
        )
        return cluster, sorted(cluster.tasks(), key=lambda task: task != cluster.chief_task)


def marks_of(directory: Path, index: int = 0) -> Path:
    """The file with the marks of a job; `index` is that of an `APART` training."""
    return directory / f"marks-{index}.json"


def _program(name: str) -> str:
    return str(ROOT / "scripts" / "benchmarks" / f"{name}.py")
