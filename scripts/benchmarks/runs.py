"""Runs the jobs of the benchmark: one to its end, or several that train an epoch each in turn.

result = run(job, directory, Size(batch_size=64, steps=20, epochs=4))
results = run_in_turn({"a": job, "b": other}, directory, Size(batch_size=64, steps=20, epochs=4))

Where the speed of a machine changes from minute to minute, the ratio of two jobs is that of epochs
that have come after each other: the second of `a` and the second of `b`, the third and the third.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import psutil

from scripts.benchmarks import marks
from scripts.benchmarks.jobs import APART, ONEDNN, ROOT, Job, Size, marks_of
from tfdist.launch.local import hold_ports
from tfdist.launch.starting import die_with

Name = TypeVar("Name", bound=Hashable)

# What would make another job of each way.
_NOT_INHERITED = (ONEDNN, "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
_GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
_DEADLINE = 600.0
_LOOK_SECONDS = 0.05
_SETTLE_SECONDS = 0.3
_SHOWN = 3000  # characters of a log, where a job has failed
_told_to_end = threading.Event()


@dataclass(frozen=True)
class Result:
    """What a job has taken.

    Attributes:
      images_per_second: over all processes, of each epoch but the first.
      bytes_per_step: sent over the loopback by all processes, for each step of all.
      peak_memory: bytes that are not of files, the sum over all processes at its greatest.
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

    def ratios(self, other: Result) -> list[float]:
        """The rates over those of the other's epochs of the same turns."""
        pairs = zip(self.images_per_second, other.images_per_second, strict=True)
        return [rate / other_rate for rate, other_rate in pairs]


def run(job: Job, directory: Path, size: Size) -> Result:
    """Runs a job to its end.

    Args:
      job: what is run.
      directory: an empty one, for what it writes.
      size: how much it trains.

    Raises:
      RuntimeError: it has failed or taken too long; with the end of what it has written.
    """
    with contextlib.closing(Run(job, directory, size)) as running:
        return running.result()


def end_on_sigterm() -> None:
    """From now on SIGTERM ends the jobs that run, also those that are stopped, and the process.

    It is noted and looked for, as an exception in a handler is lost where Python ignores all of
    them: in what it calls when it forks, say.
    """
    signal.signal(signal.SIGTERM, lambda *_: _told_to_end.set())


def run_in_turn(jobs: Mapping[Name, Job], directory: Path, size: Size) -> dict[Name, Result]:
    """Runs jobs that are all there until the last epoch, but of which only one trains at a time.

    One that fails is told on stderr and left out. The arguments are those of `run`.
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
            with _leaving_out_what_fails(running, name):
                running[name].wait_for_turn(1)
        for epoch in range(1, size.epochs):
            for name in list(running):
                with _leaving_out_what_fails(running, name):
                    running[name].train(epoch)
                    if epoch + 1 < size.epochs:
                        running[name].wait_for_turn(epoch + 1)
                    else:
                        results[name] = running[name].result()
    return results


@contextlib.contextmanager
def _leaving_out_what_fails(running: dict[Name, Run], name: Name) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        print(error, file=sys.stderr)
        running.pop(name).close()


class Run:
    """A job from its command on; to be closed, which ends what is left of it.

    Args:
      job: what is run.
      directory: an empty one, for what it writes.
      size: how much it trains.
      in_turn: whether each epoch but the first waits until it is told to begin (`train`).

    Its methods raise RuntimeError when it has failed or takes too long.
    """

    def __init__(self, job: Job, directory: Path, size: Size, *, in_turn: bool = False) -> None:
        self._job, self._directory, self._size = job, directory, size
        trainings = job.processes if job.strategy == APART else 1
        self._marks = [marks_of(directory, place) for place in range(trainings)]
        own = {**dict(job.environ), marks.VARIABLE: str(self._marks[0])}
        self._held = contextlib.ExitStack()
        ports = self._held.enter_context(hold_ports(job.processes + 2))
        if in_turn:
            own[marks.TURNS_VARIABLE] = str(directory)
            self._held.enter_context(marks.giving_turns(directory))
        # Its ranks talk to each other a thousand times a second also while they wait.
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
        # Servers by hand do not end by themselves.
        self._awaited = self._started[:trainings]

    def wait_for_turn(self, epoch: int) -> None:
        """Returns when all of it waits for its turn to train that epoch."""
        files = [marks.waits(path, epoch) for path in self._marks]
        if self._watch(lambda: all(path.exists() for path in files)):
            raise self._error("has ended too soon")
        # The one that writes the marks may be there before the others.
        time.sleep(_SETTLE_SECONDS)
        if self._pauses:
            self._signal(signal.SIGSTOP)

    def train(self, epoch: int) -> None:
        """Tells it to train that epoch."""
        if self._pauses:
            self._signal(signal.SIGCONT)
        marks.turn(self._directory, epoch).touch()

    def result(self) -> Result:
        """Waits for its end."""
        self._watch(lambda: False)
        end = time.time()
        if any(process.poll() for process in self._awaited):
            raise self._error("failed")
        if not all(path.exists() for path in self._marks):
            raise self._error("has left no marks")
        noted = [json.loads(path.read_text()) for path in self._marks]
        size, job = self._size, self._job
        rates = [
            [
                size.steps * size.batch_size / (epoch["end"] - epoch["begin"])
                for epoch in training["epochs"][1:]
            ]
            for training in noted
        ]
        if job.strategy != APART:
            rates = [[job.processes * rate for rate in rates[0]]]
        first = noted[0]
        steps = size.steps * (job.processes if job.strategy == "parameter_server" else 1)
        return Result(
            [sum(of_epoch) for of_epoch in zip(*rates, strict=True)],
            statistics.median(epoch["bytes"] / steps for epoch in first["epochs"][1:]),
            self._peak_memory,
            first["first_step"] - self._begin,
            end - max(training["last_step"] for training in noted),
        )

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        for process in self._started:
            process.wait()
        self._held.close()

    def _signal(self, number: signal.Signals) -> None:
        # Not by group: torchrun and horovodrun give each process one of its own.
        for process in _processes(self._started):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def _watch(self, is_reached: Callable[[], bool]) -> bool:
        """Waits until something is reached or it has ended or failed, which is returned."""
        until = time.monotonic() + _DEADLINE
        looks = 0
        while not is_reached():
            if _told_to_end.is_set():
                sys.exit(128 + signal.SIGTERM)
            codes = [process.poll() for process in self._awaited]
            if None not in codes or any(codes):
                return True
            if time.monotonic() > until:
                raise self._error(f"takes more than {_DEADLINE:g} s")
            if looks % 20 == 0:
                self._peak_memory = max(self._peak_memory, _memory(self._started))
            looks += 1
            time.sleep(_LOOK_SECONDS)
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
    """Those and all that they have started."""
    found = []
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(process.pid)
            found += [root, *root.children(recursive=True)]
    return found


def _memory(started: Sequence[subprocess.Popen[bytes]]) -> int:
    """Bytes of the processes; a page that several of them share is counted once.

    Without files, of which a job would have the less the more jobs there are.
    """
    kibibytes = 0
    for process in _processes(started):
        with contextlib.suppress(OSError):  # It has ended.
            sizes = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            kibibytes += sum(map(int, re.findall(r"^Pss_(?:Anon|Shmem): *(\d+)", sizes, re.M)))
    return 1024 * kibibytes
