"""What a training that is measured notes while it runs, whatever it is written with.

    marks = Marks()        # in every task; `Marks(writes=False)` in all but one
    marks.epoch_begins(); marks.step_ends(); …; marks.epoch_ends()
    marks.write()          # where BENCHMARK_MARKS says, for runs.py

Without TensorFlow, so that every script can use it.
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

#: The environment variable with the path of the notes.
VARIABLE = "BENCHMARK_MARKS"
#: That with the directory where it is said which epochs may begin; without it all may.
TURNS_VARIABLE = "BENCHMARK_TURNS"

_LOOK_SECONDS = 0.01
_LOCK = "turns.lock"


def waits(marks: Path, epoch: int) -> Path:
    """What is there as soon as the task that writes these marks waits for its turn."""
    return marks.with_suffix(f".waits-{epoch}")


def turn(directory: Path, epoch: int) -> Path:
    """What tells all tasks that they may begin with that epoch."""
    return directory / f"turn-{epoch}"


@contextmanager
def giving_turns(directory: Path) -> Iterator[None]:
    """Within it tasks wait for their turns; those that wait end when it has ended."""
    with (directory / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _turns_are_given(directory: Path) -> bool:
    try:
        with (directory / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


class Marks:
    """Times in seconds since 1970, and bytes that this machine has sent to itself until then.

    Args:
      writes: whether this is the task whose marks are written; all of them wait for their turn.
    """

    def __init__(self, writes: bool = True) -> None:
        self._path = Path(os.environ[VARIABLE]) if writes else None
        self._first_step: float | None = None
        self._last_step: float | None = None
        self._epochs: list[dict[str, float]] = []

    def epoch_begins(self) -> None:
        self._wait_for_turn(len(self._epochs))
        self._epochs.append({"begin": time.time(), "bytes": float(loopback_bytes())})

    def step_ends(self) -> None:
        self._last_step = time.time()
        self._first_step = self._first_step or self._last_step

    def epoch_ends(self) -> None:
        epoch = self._epochs[-1]
        epoch["end"] = time.time()
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
        # The first warms up, as soon as the job has started.
        if TURNS_VARIABLE not in os.environ or not epoch:
            return
        directory = Path(os.environ[TURNS_VARIABLE])
        if self._path is not None:
            waits(self._path, epoch).touch()
        while not turn(directory, epoch).exists():
            if not _turns_are_given(directory):
                sys.exit("the benchmark has ended")
            time.sleep(_LOOK_SECONDS)


def loopback_bytes() -> int:
    """Bytes that were sent over the loopback interface since it is up (`proc(5)`, net/dev)."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise OSError("/proc/net/dev: received no line of lo; accepted: Linux's, with its loopback")
