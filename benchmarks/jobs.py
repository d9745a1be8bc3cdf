"""The jobs that the benchmark measures: what is started for each, and what it has taken.

job = Job("tfdist", "horovod", processes=2)
result = job.run(directory, Size(batch_size=64, steps=20, epochs=4))
result.images_per_second
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.marks import VARIABLE
from tfdist.cluster import Cluster
from tfdist.launch.local import hold_ports
from tfdist.runtime import CORES_VARIABLE

ROOT = Path(__file__).parents[1]
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
# What would make another job of each way.
_NOT_INHERITED = (ONEDNN, "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

#: Trainings of one process and one core each, at the same time: the most that a machine lets
#: several processes do, which here have nothing to wait for.
APART = "apart"
#: PyTorch's order of an image's dimensions, and the one in which its CPU kernels are fastest.
TORCH_WAYS = ("torch", "torch_channels_last")
#: Who distributes: a script by hand with TensorFlow's defaults, or with oneDNN forced off or on;
#: tfdist; PyTorch.
WAYS = ("plain", "plain_without_onednn", "plain_with_onednn", "tfdist", *TORCH_WAYS)

_DEADLINE = 600.0
_LOOK_SECONDS = 0.05
_SHOWN = 3000  # characters of a log, where a job has failed

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
class Result:
    """What a job has taken.

    Attributes:
      images_per_second: over all processes, of each epoch but the first.
      bytes_per_step: sent over the loopback by all processes, for each step of all.
      peak_memory: bytes, the sum over all processes at its greatest.
      seconds_to_first_step: from the command on.
      seconds_to_exit: from the last step on, until what was started has ended (with a parameter
        server by hand, the chief).
    """

    images_per_second: list[float]
    bytes_per_step: float
    peak_memory: int
    seconds_to_first_step: float
    seconds_to_exit: float

    @property
    def median(self) -> float:
        return statistics.median(self.images_per_second)


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
      steps_per_execution: that of Keras, under tfdist.
    """

    way: str
    strategy: str
    processes: int
    cores: int = 0
    flags: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()
    steps_per_execution: int = 1

    def __str__(self) -> str:
        cores = f" on {self.cores} core" if self.cores else ""
        return f"{self.strategy} x {self.processes}{cores}, {self.way}"

    def run(self, directory: Path, size: Size) -> Result:
        """Runs the job to its end.

        Args:
          directory: an empty one, for what it writes.
          size: how much it trains.

        Raises:
          RuntimeError: it has failed or taken too long; with the end of what it has written.
        """
        marks = directory / "marks.json"
        own = {**dict(self.environ), VARIABLE: str(marks)}
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: self.cores or None]))
        with hold_ports(self.processes + 2) as ports:
            commands = self._commands(ports, directory, size)
            begin = time.time()
            started = [
                _start(["taskset", "-c", cores, *command], {**own, **environ}, path)
                for number, (command, environ) in enumerate(commands)
                for path in [directory / f"{number}.log"]
            ]
            try:
                peak = _watch(started[0], started)
                end = time.time()
                if peak is None or started[0].returncode or not marks.exists():
                    what = f"runs after {_DEADLINE:g} s" if peak is None else "failed"
                    logs = [path.read_text() for path in sorted(directory.glob("*.log"))]
                    ends = "\n".join(text[-_SHOWN:] for text in logs)
                    raise RuntimeError(f"{self} {what}:\n{ends}")
            finally:
                _kill(started)
        return self._result(json.loads(marks.read_text()), size, begin, end, peak)

    def _result(
        self, marks: Mapping[str, object], size: Size, begin: float, end: float, peak: int
    ) -> Result:
        epochs = marks["epochs"]
        first, last = marks["first_step"], marks["last_step"]
        assert isinstance(epochs, list) and isinstance(first, float) and isinstance(last, float)
        images = size.steps * size.batch_size * self.processes
        steps = size.steps * (self.processes if self.strategy == "parameter_server" else 1)
        return Result(
            [images / (epoch["end"] - epoch["begin"]) for epoch in epochs[1:]],
            statistics.median(epoch["bytes"] / steps for epoch in epochs[1:]),
            peak,
            first - begin,
            end - last,
        )

    def _commands(self, ports: Sequence[int], directory: Path, size: Size) -> Commands:
        """What to start; the first is the one that is waited for."""
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
            run = [sys.executable, "-m", "tfdist.cli", "run", f"--strategy={self.strategy}"]
            run += [f"--workers={self.processes}", *self.flags]
            if self.strategy == "parameter_server":
                run += ["--ps=1", "--chief"]
            own = [f"--output_dir={directory / 'output'}"]
            own += [f"--steps_per_execution={self.steps_per_execution}"]
            return [([*run, _program("with_tfdist"), *size.flags(), *own], {})]
        forced = {"plain_without_onednn": {ONEDNN: "0"}, "plain_with_onednn": {ONEDNN: "1"}}
        return self._plain(ports, size, forced.get(self.way, {}))

    def _apart(self, directory: Path, size: Size) -> Commands:
        commands: list[tuple[Sequence[str], Mapping[str, str]]] = []
        for place in range(self.processes):
            environ = {CORES_VARIABLE: f"{place}/{self.processes}"}
            if place:  # The marks are those of the first.
                environ[VARIABLE] = str(directory / f"marks-{place}.json")
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
        tasks = sorted(cluster.tasks(), key=lambda task: task != cluster.leader)
        return [(command, {"TF_CONFIG": cluster.tf_config(task), **environ}) for task in tasks]


def _program(name: str) -> str:
    return str(ROOT / "benchmarks" / f"{name}.py")


def _start(
    command: Sequence[str], environ: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    with output.open("w") as file:
        return subprocess.Popen(
            command,
            env={**inherited, "PYTHONPATH": str(ROOT), **environ},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _watch(
    leader: subprocess.Popen[bytes], started: Sequence[subprocess.Popen[bytes]]
) -> int | None:
    """Waits for the end of the leader; returns the greatest sum of memory until then.

    None where it takes too long.
    """
    until = time.monotonic() + _DEADLINE
    peak, looks = 0, 0
    while leader.poll() is None:
        if time.monotonic() > until:
            return None
        if looks % 20 == 0:
            peak = max(peak, _memory(started))
        looks += 1
        time.sleep(_LOOK_SECONDS)
    return peak


def _tree(started: Sequence[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    found = []
    for process in started:
        try:
            root = psutil.Process(process.pid)
            found += [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found


def _memory(started: Sequence[subprocess.Popen[bytes]]) -> int:
    total = 0
    for process in _tree(started):
        try:
            # Each page is counted once, however many processes share it.
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def _kill(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends what a job by hand leaves behind: servers do not end by themselves."""
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
