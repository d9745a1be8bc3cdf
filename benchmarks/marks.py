"""What a training that is measured notes while it runs, whatever it is written with.

    marks = Marks()
    marks.epoch_begins(); marks.step_ends(); …; marks.epoch_ends()
    marks.write()          # where BENCHMARK_MARKS says, for scripts/benchmark.py

Without TensorFlow, so that every script can use it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

#: The environment variable with the path of the notes.
VARIABLE = "BENCHMARK_MARKS"


class Marks:
    """Times in seconds since 1970, and bytes that this machine has sent to itself until then."""

    def __init__(self) -> None:
        self._first_step: float | None = None
        self._last_step: float | None = None
        self._epochs: list[dict[str, float]] = []

    def epoch_begins(self) -> None:
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
        Path(os.environ[VARIABLE]).write_text(json.dumps(marks))


def loopback_bytes() -> int:
    """Bytes that were sent over the loopback interface since it is up (`proc(5)`, net/dev)."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    raise OSError("/proc/net/dev: received no line of lo; accepted: Linux's, with its loopback")
