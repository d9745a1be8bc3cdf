"""Records the times of epochs and steps in a measured training, with any framework.

marks = Marks()        # in every task; `Marks(writes=False)` in all but one
marks.epoch_begins(); marks.step_ends(); …; marks.epoch_ends()
marks.write()          # writes the file BENCHMARK_MARKS, which runs.py reads

This module does not import TensorFlow.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The environment variable with the path of the marks file.
VARIABLE = "BENCHMARK_MARKS"
#: The environment variable with the directory of the turn files; without it, tasks take no turns.
TURNS_VARIABLE = "BENCHMARK_TURNS"

_POLL_SECONDS = 0.01
_LOCK = "turns.lock"


def waiting_file(marks: Path, epoch: int) -> Path:
    """The file that the task with this marks file creates when it waits for its turn."""
    return marks.with_suffix(f".waits-{epoch}")


def turn_file(directory: Path, epoch: int) -> Path:
    """The file that allows all tasks of a job to begin an epoch."""
    return directory / f"turn-{epoch}"


@contextmanager
def enable_turns(directory: Path) -> Iterator[None]:
    """A context in which tasks wait for their turns; waiting tasks exit when it ends."""
    with (directory / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _turns_are_enabled(directory: Path) -> bool:
    try:
        with (directory / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


class Marks:
    """Records times (`time.time`), this process's CPU time, and bytes sent over loopback.

    Args:
      writes: whether this task writes its marks; all tasks wait for their turn.
    """

    def __init__(self, writes: bool = True) -> None:
        self._path = Path(os.environ[VARIABLE]) if writes else None
        self._first_step: float | None = None
        self._last_step: float | None = None
        self._epochs: list[dict[str, float]] = []

    def epoch_begins(self) -> None:
        self._wait_for_turn(len(self._epochs))
        self._epochs.append(
            {"begin": time.time(), "cpu": cpu_seconds(), "bytes": float(loopback_bytes())}
        )

    def step_ends(self) -> None:
        self._last_step = time.time()
        self._first_step = self._first_step or self._last_step

    def epoch_ends(self) -> None:
        epoch = self._epochs[-1]
        epoch["end"] = time.time()
        epoch["cpu"] = cpu_seconds() - epoch["cpu"]
        epoch["bytes"] = loopback_bytes() - epoch["bytes"]

    def write(self) -> None:
        marks = {
            "first_step": self._first_step,
            "last_step": self._last_step,
            "epochs": self._epochs,
        }
        if self._path is not None:
            self._path.write_text(json.dumps(marks))

    def _wait_for_turn(self, epoch: int) -> None:
        # The first epoch is the warm-up and begins when the job has started.
        if TURNS_VARIABLE not in os.environ or not epoch:
            return
        directory = Path(os.environ[TURNS_VARIABLE])
        if self._path is not None:
            waiting_file(self._path, epoch).touch()
        while not turn_file(directory, epoch).exists():
            if not _turns_are_enabled(directory):
                sys.exit("the benchmark has ended")
            time.sleep(_POLL_SECONDS)


def cpu_seconds() -> float:
    """The CPU time of all threads of this process, in user and in system mode."""
    return time.process_time()


def loopback_bytes() -> int:
    """The bytes sent over the loopback interface since boot (`proc(5)`, net/dev)."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise OSError("/proc/net/dev: received no line for lo; accepted: a loopback interface")
