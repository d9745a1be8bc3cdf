"""Starts the tasks of a job as a person would, one process a task, and waits for all of them.

    with hold_ports(3) as ports:
        ended = run_by_hand(tasks, deadline=60)
    assert ended["ps:0"].code == 0

Every process has a session of its own, which is gone when `run_by_hand` returns.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import psutil

from tests.support.patience import PATIENCE
from tfdist.cluster import Cluster, Task
from tfdist.coordination.liveness import activity
from tfdist.coordination.liveness.activity import State
from tfdist.tools.launch.forkserver import ForkServer
from tfdist.tools.launch.spawn import Started

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).with_name("program.py"))
LAUNCHER = str(Path(__file__).with_name("launcher.py"))

# By the name of each task, its command and its environment.
Tasks = dict[str, tuple[Sequence[str], Mapping[str, str]]]
Processes = Mapping[str, "subprocess.Popen[str] | Copy"]

# What a copy of it need not import any more.
_PRELOAD = (
    "tensorflow",
    "tfdist.training.callbacks",
    "tfdist.tools.commands.cli",
    "tfdist.estimator",
    "tfdist.tools.launch.local",
    "tfdist.strategies.horovod",
)

_TFDIST = [sys.executable, "-m", "tfdist"]

_INHERITED = {
    name: value
    for name, value in os.environ.items()
    if name not in ("TF_CONFIG", "TFDIST_STRATEGY") and not name.startswith("HOROVOD_")
}


@dataclass(frozen=True)
class Ended:
    """How a task ended: its exit code, what it printed, and when (`time.monotonic`)."""

    code: int
    output: str
    time: float


def start(
    command: Sequence[str], environment: Mapping[str, str], output: IO[str]
) -> subprocess.Popen[str]:
    """Starts one process, in a session of its own and with the repository on its path."""
    return subprocess.Popen(
        command,
        env={**_INHERITED, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )


class Copy:
    """A process that was started by `copy`, with what of `subprocess.Popen` is used here."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self.pid = started.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._started.wait() if self._started.has_ended() else None

    def wait(self) -> int:
        return self._started.wait()

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


@functools.cache
def fork_server() -> ForkServer:
    """The fork server of this process, which has imported TensorFlow."""
    server = ForkServer(_PRELOAD, {**_INHERITED, "PYTHONPATH": str(ROOT)})
    server.read_ready()
    return server


def copy(command: Sequence[str], environment: Mapping[str, str], output: IO[str]) -> Copy:
    """As `start`, for a Python script: without the seconds that importing TensorFlow takes."""
    environ = {**_INHERITED, "PYTHONPATH": str(ROOT), **environment}
    return Copy(fork_server().start(command, environ, output.fileno()))


def run_by_hand(
    directory: Path,
    tasks: Tasks,
    *,
    deadline: float,
    copies: bool = True,
    watch: Callable[[Processes, Mapping[str, Path]], None] | None = None,
) -> dict[str, Ended]:
    """Runs every task to its end, or until the deadline.

    Args:
      directory: where the tasks' output goes.
      tasks: command and environment of each task.
      deadline: seconds on an idle machine; a task that is still running after `PATIENCE` times
        as long is killed, which its code shows.
      copies: whether Python scripts and `tfdist` run in copies of a process that has TensorFlow
        imported, and the tasks that it starts, too; else each is a new process, as a person's are.
      watch: called again and again meanwhile, with the processes and their output files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = {name: directory / f"{name.replace(':', '-')}.log" for name in tasks}
    processes: dict[str, subprocess.Popen[str] | Copy] = {}
    ended: dict[str, float] = {}
    try:
        for name, (command, environment) in tasks.items():
            with paths[name].open("w") as output:
                if copies and [*command[:3]] == _TFDIST:
                    command = [sys.executable, LAUNCHER, *command[3:]]
                is_script = command[0] == sys.executable and command[1].endswith(".py")
                begin = copy if copies and is_script else start
                processes[name] = begin(command, environment, output)
        until = time.monotonic() + PATIENCE * deadline
        while len(ended) < len(tasks) and time.monotonic() < until:
            for name, process in processes.items():
                if name not in ended and process.poll() is not None:
                    ended[name] = time.monotonic()
            if watch is not None:
                watch(processes, paths)
            time.sleep(0.05)
    finally:
        for process in processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return {
        name: Ended(process.wait(), paths[name].read_text(), ended.get(name, float("inf")))
        for name, process in processes.items()
    }


def by_flags(cluster: Cluster, arguments: Sequence[str], *more: Task) -> Tasks:
    """The tasks of a cluster, each told who it is by flags alone."""
    return {
        str(task): ([sys.executable, PROGRAM, *cluster.flags(task), *arguments], {})
        for task in (*cluster.tasks(), *more)
    }


def by_tf_config(cluster: Cluster, arguments: Sequence[str], *more: Task) -> Tasks:
    """The tasks of a cluster, each told who it is by TF_CONFIG alone."""
    return {
        str(task): (
            [sys.executable, PROGRAM, *arguments],
            {"TF_CONFIG": cluster.tf_config(task)},
        )
        for task in (*cluster.tasks(), *more)
    }


def launch(directory: Path, *arguments: str, deadline: float, copies: bool = True) -> Ended:
    """`tfdist run` with these arguments, to its end; `copies` as for `run_by_hand`."""
    job: Tasks = {"tfdist": ([*_TFDIST, "run", *arguments], {})}
    return run_by_hand(directory, job, deadline=deadline, copies=copies)["tfdist"]


def directories(path: Path) -> list[str]:
    """The flags that give `program.py` its directories below `path`."""
    return [f"--output_dir={path / 'output'}", f"--result_dir={path / 'result'}"]


def results(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """What the tasks of `program.py` found, by task."""
    return {file.stem: dict(np.load(file)) for file in sorted((path / "result").glob("*.npz"))}


def epochs_logged(output: Path) -> list[int]:
    """The epochs in the metrics log of an output directory."""
    metrics = output / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return [json.loads(line)["epoch"] for line in lines]


def checkpoints(path: Path) -> list[str]:
    """The index files of the checkpoints below the output directory of `path`, by name."""
    found: list[str] = []
    for _, _, names in os.walk(path / "output"):
        # Not the parts of one that is being written.
        found += [name for name in names if re.search(r"ckpt-\d+\.index$", name)]
    return found


def tasks_of(launcher: int) -> list[psutil.Process]:
    """The tasks that run under a `tfdist run`, by its number, in the order of their starts."""
    children = psutil.Process(launcher).children()
    # The fork server is the one of them that has children of its own.
    tasks = [task for child in children for task in child.children()]
    # Numbers of processes start again at a small one after the largest.
    return sorted(tasks, key=lambda task: (task.create_time(), task.pid))


def states_of(output: Path) -> list[State]:
    """What the training tasks do that write to an output directory, in the order of their names."""
    records = activity.tasks_of_this_machine()
    return [each.state for each in records if each.state.output == str(output)]


class OnceSaved:
    """A `watch` that calls `strike` once, when `path` has `count` new checkpoints."""

    def __init__(self, path: Path, count: int, strike: Callable[[Processes], None]) -> None:
        self._path = path
        self._count = count
        self._strike = strike
        self._before = set(checkpoints(path))
        self._has_struck = False

    def __call__(self, processes: Processes, _: Mapping[str, Path]) -> None:
        if self._has_struck or len(set(checkpoints(self._path)) - self._before) < self._count:
            return
        self._strike(processes)
        self._has_struck = True


def cluster_of(ports: Sequence[int], *, chief: int = 0, workers: int, ps: int = 0) -> Cluster:
    """A cluster on this machine's loopback."""
    addresses = [f"127.0.0.1:{port}" for port in ports]
    return Cluster(
        chief=tuple(addresses[:chief]),
        worker=tuple(addresses[chief : chief + workers]),
        ps=tuple(addresses[chief + workers : chief + workers + ps]),
    )
