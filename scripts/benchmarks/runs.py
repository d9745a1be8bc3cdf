"""Runs the jobs of the benchmarks: a single job, or several jobs that take turns.

result = run(job, directory, Size(batch_size=64, steps=20, epochs=4))
results = run_in_turn({"a": job, "b": other}, directory, Size(batch_size=64, steps=20, epochs=4))

The speed of a machine may change from minute to minute. So the ratio of two jobs compares epochs
that ran one after the other: the second epoch of `a` with the second epoch of `b`, and so on.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from scripts.benchmarks import marks
from scripts.benchmarks.jobs import APART, ONEDNN, ROOT, Job, Size, marks_of
from tfdist.tools.launch.local import hold_ports
from tfdist.tools.launch.spawn import die_with

Name = TypeVar("Name", bound=Hashable)

# Variables that would change the meaning of the ways.
_NOT_INHERITED = (ONEDNN, "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_DEADLINE = 600.0
_POLL_SECONDS = 0.05
_SETTLE_SECONDS = 0.3
_SHOWN = 3000  # characters of the log of a failed job
_sigterm_received = threading.Event()


@dataclass(frozen=True)
class Result:
    """The measurements of a job.

    Attributes:
      images_per_second: the sum over all processes, for each epoch but the first.
      bytes_per_step: the bytes that all processes send over the loopback interface per step.
      peak_memory: the maximum of the memory of all processes, without mapped files, in bytes.
      seconds_to_first_step: from the command to the end of the first step.
      seconds_to_exit: from the last step until all processes have exited (only the chief for
        hand-written parameter servers).
      cpu_seconds_per_step: the CPU time of the task that writes the marks, for each epoch but the
        first. With parameter servers this is the chief, and a step is that of one worker.
    """

    images_per_second: list[float]
    bytes_per_step: float
    peak_memory: int
    seconds_to_first_step: float
    seconds_to_exit: float
    cpu_seconds_per_step: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.images_per_second)

    def ratios(self, other: Result) -> list[float]:
        """The rates divided by those of another job, turn by turn."""
        pairs = zip(self.images_per_second, other.images_per_second, strict=True)
        return [rate / other_rate for rate, other_rate in pairs]


def run(job: Job, directory: Path, size: Size) -> Result:
    """Runs a job to completion.

    Args:
      job: the job.
      directory: an empty directory for the output.
      size: the size of the training.

    Raises:
      RuntimeError: the job failed or took too long; contains the end of its log.
    """
    with contextlib.closing(Run(job, directory, size)) as running:
        return running.result()


def exit_on_sigterm() -> None:
    """Makes SIGTERM kill all running jobs, including suspended ones, and exit this process.

    The handler only sets an event, because Python ignores exceptions in some places, such as fork
    hooks, and an exception from the handler would be lost there.
    """
    signal.signal(signal.SIGTERM, lambda *_: _sigterm_received.set())


def run_in_turn(jobs: Mapping[Name, Job], directory: Path, size: Size) -> dict[Name, Result]:
    """Runs several jobs at the same time, of which only one trains at any moment.

    If a job fails, its error is printed to stderr and the job is left out. The arguments are those
    of `run`.
    """
    running: dict[Name, Run] = {}
    results: dict[Name, Result] = {}
    with contextlib.ExitStack() as every_run:
        for number, (name, job) in enumerate(jobs.items()):
            own = directory / str(number)
            own.mkdir()
            running[name] = every_run.enter_context(
                contextlib.closing(Run(job, own, size, in_turn=True))
            )
            with _skip_if_failed(running, name):
                running[name].wait_for_turn(1)
        for epoch in range(1, size.epochs):
            for name in list(running):
                with _skip_if_failed(running, name):
                    running[name].train(epoch)
                    if epoch + 1 < size.epochs:
                        running[name].wait_for_turn(epoch + 1)
                    else:
                        results[name] = running[name].result()
    return results


@contextlib.contextmanager
def _skip_if_failed(running: dict[Name, Run], name: Name) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        print(error, file=sys.stderr)
        running.pop(name).close()


class Run:
    """A running job; `close` kills its processes.

    The methods raise RuntimeError if the job has failed or takes too long.

    Args:
      job: the job.
      directory: an empty directory for the output.
      size: the size of the training.
      in_turn: whether each epoch but the first waits for `train`.
    """

    def __init__(self, job: Job, directory: Path, size: Size, *, in_turn: bool = False) -> None:
        self._job, self._directory, self._size = job, directory, size
        trainings = job.processes if job.strategy == APART else 1
        self._marks = [marks_of(directory, index) for index in range(trainings)]
        own = {**dict(job.environ), marks.VARIABLE: str(self._marks[0])}
        self._held = contextlib.ExitStack()
        ports = self._held.enter_context(hold_ports(job.processes + 2))
        if in_turn:
            own[marks.TURNS_VARIABLE] = str(directory)
            self._held.enter_context(marks.enable_turns(directory))
        # Horovod's ranks communicate a thousand times per second even while they wait.
        self._pauses = in_turn and job.strategy == "horovod"
        if self._pauses:
            own[_GLOO_TIMEOUT] = str(math.ceil(_DEADLINE))
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: job.cores or None]))
        self._peak_memory = 0
        self._begin = time.time()
        self._started: list[subprocess.Popen[bytes]] = []
        for number, (command, environ) in enumerate(job.commands(ports, directory, size)):
            path = directory / f"{number}.log"
            on_cores = ["taskset", "-c", cores, *command]
            self._started.append(_start(on_cores, {**own, **environ}, path))
        # Hand-written servers do not exit.
        self._awaited = self._started[:trainings]

    @property
    def launcher(self) -> int:
        """The process ID of the job's first command."""
        return self._started[0].pid

    def wait_for_turn(self, epoch: int) -> None:
        """Returns when all trainings of the job wait for their turn to train an epoch."""
        files = [marks.waiting_file(path, epoch) for path in self._marks]
        if self._watch(lambda: all(path.exists() for path in files)):
            raise self._error("exited early")
        # The task that writes the marks may wait before the other tasks do.
        time.sleep(_SETTLE_SECONDS)
        if self._pauses:
            self._signal(signal.SIGSTOP)

    def train(self, epoch: int) -> None:
        """Allows the job to train an epoch."""
        if self._pauses:
            self._signal(signal.SIGCONT)
        marks.turn_file(self._directory, epoch).touch()

    def result(self) -> Result:
        """Waits until the job has exited; returns its measurements."""
        self._watch(lambda: False)
        end = time.time()
        if any(process.poll() for process in self._awaited):
            raise self._error("failed")
        if not all(path.exists() for path in self._marks):
            raise self._error("wrote no marks")
        recorded = [json.loads(path.read_text()) for path in self._marks]
        size, job = self._size, self._job
        rates = [
            [
                size.steps * size.batch_size / (epoch["end"] - epoch["begin"])
                for epoch in training["epochs"][1:]
            ]
            for training in recorded
        ]
        if job.strategy != APART:
            rates = [[job.processes * rate for rate in rates[0]]]
        first = recorded[0]
        steps = size.steps * (job.processes if job.strategy == "parameter_server" else 1)
        return Result(
            [sum(of_epoch) for of_epoch in zip(*rates, strict=True)],
            statistics.median(epoch["bytes"] / steps for epoch in first["epochs"][1:]),
            self._peak_memory,
            first["first_step"] - self._begin,
            end - max(training["last_step"] for training in recorded),
            [epoch["cpu"] / steps for epoch in first["epochs"][1:]],
        )

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        for process in self._started:
            process.wait()
        self._held.close()

    def _signal(self, number: signal.Signals) -> None:
        # Not by process group: torchrun and horovodrun start each process in a new group.
        for process in _processes(self._started):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _watch(self, is_reached: Callable[[], bool]) -> bool:
        """Waits until `is_reached`, or until the job has exited; returns whether it has exited."""
        until = time.monotonic() + _DEADLINE
        polls = 0
        while not is_reached():
            if _sigterm_received.is_set():
                sys.exit(128 + signal.SIGTERM)
            codes = [process.poll() for process in self._awaited]
            if None not in codes or any(codes):
                return True
            if time.monotonic() > until:
                raise self._error(f"takes more than {_DEADLINE:g} s")
            if polls % 20 == 0:
                self._peak_memory = max(self._peak_memory, _memory(self._started))
            polls += 1
            time.sleep(_POLL_SECONDS)
        return False

    def _error(self, what: str) -> RuntimeError:
        logs = [path.read_text() for path in sorted(self._directory.glob("*.log"))]
        ends = "\n".join(text[-_SHOWN:] for text in logs)
        return RuntimeError(f"{self._job} {what}:\n{ends}")


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
            preexec_fn=partial(die_with, os.getpid()),
        )


def _processes(started: Sequence[subprocess.Popen[bytes]]) -> list[psutil.Process]:
    """The started processes and their descendants."""
    found = []
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            found += [root, *root.children(recursive=True)]
    return found


def _memory(started: Sequence[subprocess.Popen[bytes]]) -> int:
    """The memory of the processes in bytes; shared pages are counted once.

    Does not include mapped files, because several jobs share their pages.
    """
    kibibytes = 0
    for process in _processes(started):
        with contextlib.suppress(OSError):  # The process has exited.
            sizes = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            kibibytes += sum(map(int, re.findall(r"^Pss_(?:Anon|Shmem): *(\d+)", sizes, re.M)))
    return 1024 * kibibytes
