"""What this task does now and has done last, readable by other processes of the same user.

    activity = Activity("worker:1", job="0f3a…")
    activity.describe(output="/shared/run1")
    with activity.doing(SAVING):
        ...
    activity.made(41)               # steps; called by the watchdog
    record = read(4711)             # in another process; None if process 4711 is no task

The record is a file in memory. So another process can read it while this one is stopped, or while
a call holds Python's global interpreter lock.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from tfdist.process.thread_stacks import memory_file, new_memory_file

#: What a task does.
STARTING, TRAINING, BETWEEN_EPOCHS = "starting", "training", "between epochs"
BETWEEN_STEPS = "between steps"
EVALUATING, SAVING, EXPORTING, SERVING = "evaluating", "saving", "exporting", "serving"
WAITING = "waiting"

_NAME = "tfdist-activity"
_EVENTS, _EVENT_LENGTH = 100, 100
_SIZE = 1 << 16
# A record that is read while it is written may be damaged.
_READS = 10


@dataclass(frozen=True)
class State:
    """What a task does now. All times are in seconds since 1970.

    Attributes:
      task: its name.
      host: the name of its machine.
      pid: its process.
      job: equal in all tasks of a job.
      doing: one of the constants above.
      since: when it began to do that.
      steps: the steps that it has made in this process.
      last_step: when the last of them was seen; 0 if there is none.
      output: the output directory; empty if it is not known.
      epoch: the current epoch, from 1; 0 before the first.
      epochs: the epochs of the training; 0 if they are not known.
      resumed: the steps of the training that were made before this process began.
      goal: the steps of the whole training; 0 if they are not known.
      loss: the mean loss of the epoch so far, or of the last one; -inf if it is not known.
      examples_per_step: this task's share in the examples of a step; 0 if it is not known.
      tables: how full the dynamic tables are, in words; empty without any.
    """

    task: str = ""
    host: str = ""
    pid: int = 0
    job: str = ""
    doing: str = STARTING
    since: float = 0.0
    steps: int = 0
    last_step: float = 0.0
    output: str = ""
    epoch: int = 0
    epochs: int = 0
    resumed: int = 0
    goal: int = 0
    loss: float = -math.inf
    examples_per_step: float = 0.0
    tables: str = ""

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> State:
        """Parses a JSON object.

        Raises:
          KeyError, TypeError: it does not describe a state.
        """
        values = {field.name: content[field.name] for field in fields(cls)}
        for field in fields(cls):
            if type(values[field.name]) is not type(field.default):
                raise TypeError(field.name)
        return cls(**values)


@dataclass(frozen=True)
class Record:
    """A task's state and its last events, as pairs of a time and a text."""

    state: State
    events: tuple[tuple[float, str], ...]


class Activity:
    """The record of this process; its methods may be called in any thread.

    Args:
      task: the name of this task.
      job: equal in all tasks of the job.

    Attributes:
      state: what this task does now.
    """

    def __init__(self, task: str, job: str = "") -> None:
        file = new_memory_file(_NAME)
        os.ftruncate(file, _SIZE)
        self._memory = mmap.mmap(file, _SIZE)
        self._lock = threading.RLock()
        self._events: deque[tuple[float, str]] = deque(maxlen=_EVENTS)
        # The steps when the task began to do what it does now.
        self._steps_before = 0
        self.state = State(task, socket.gethostname(), os.getpid(), job)
        self.enter(STARTING)

    @property
    def record(self) -> Record:
        """The record of this process."""
        with self._lock:
            return Record(self.state, tuple(self._events))

    def enter(self, doing: str) -> None:
        """Records what the task does now. A step turns STARTING, for example, into TRAINING."""
        with self._lock:
            self._steps_before = self.state.steps
            self.describe(doing=doing, since=time.time())
            self.event(doing)

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Records what the task does while the block runs."""
        before = self.state.doing
        self.enter(what)
        try:
            yield
        finally:
            self.enter(before)

    def made(self, steps: int) -> None:
        """Records the number of steps that the task has made so far."""
        with self._lock:
            if steps == self.state.steps:
                return
            self.describe(steps=steps, last_step=time.time())
            self.event(f"step {steps}")
            if self.state.doing in (STARTING, BETWEEN_EPOCHS) and steps != self._steps_before:
                self.enter(TRAINING)

    def event(self, text: str) -> None:
        """Adds an event; the last 100 are kept."""
        with self._lock:
            self._events.append((time.time(), text[:_EVENT_LENGTH]))
            self.describe()

    def describe(self, **changes: str | int | float) -> None:
        """Sets attributes of the state, such as the output directory, and writes the record."""
        with self._lock:
            self.state = replace(self.state, **changes)  # type: ignore[arg-type]
            content = {"state": vars(self.state), "events": list(self._events)}
            line = json.dumps(content).encode() + b"\n"
            if len(line) <= _SIZE:
                self._memory[: len(line)] = line


def read(pid: int) -> Record | None:
    """The record of another process; None if the process has none.

    Raises:
      PermissionError: the process belongs to another user.
    """
    path = memory_file(pid, _NAME)
    if path is None:
        return None
    for _ in range(_READS):
        try:
            content = json.loads(path.read_bytes().partition(b"\n")[0])
            events = ((when, str(text)) for when, text in content["events"])
            return Record(State.of(content["state"]), tuple(events))
        except (ValueError, KeyError, TypeError):
            time.sleep(0.01)
        except FileNotFoundError:
            break
    return None


def tasks_of_this_machine() -> list[Record]:
    """The records of all tasks of this user that run on this machine."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                record = read(int(path.name))
            except OSError:
                continue  # It belongs to another user, or has ended.
            # A child of a task may have inherited its file.
            if record is not None and record.state.pid == int(path.name):
                found.append(record)
    return sorted(found, key=lambda record: record.state.task)
