"""What the tasks of a starting job tell each other: a bounded line of JSON a message.

    writer.write(encode(Row(reach={Task("ps", 0): Reach(REFUSED)})))
    message = decode(await reader.readline())    # None for whatever else came in

Nothing that is received is run or unpickled. A line that is longer than `LIMIT` bytes, that is not
JSON of exactly these shapes, or that carries text which cannot be printed is no message at all.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster import JOB_NAMES, Cluster, Task
from tfdist.errors import UsageError
from tfdist.version import __version__

#: The longest line that is read, in bytes; the hello of a job of 2,000 tasks fits in.
LIMIT = 256 << 10

_PROTOCOL = "tfdist/1"
# Characters of a text, and of a verdict.
_TEXT_LIMIT, _VERDICT_LIMIT = 255, 4096
_TASK = re.compile(rf"({'|'.join(JOB_NAMES)}):([0-9]{{1,6}})")

# How far a task came with another one; `Reach.kind`.
REACHED = "reached"
NOT_TRIED = "not tried yet"
REFUSED = "refused"
TIMED_OUT = "timed out"
UNREACHABLE = "unreachable"
UNRESOLVED = "name does not resolve"
SILENT = "connected, and nothing answers"
STRANGER = "another program answers"
RUNNING = "a TensorFlow server is running"
CHECKING = "is running `tfdist check` instead of training, or vice versa"
OTHER_JOB = "another job answers"
OTHER_TASK = "another task answers"
_KINDS = (
    REACHED,
    NOT_TRIED,
    REFUSED,
    TIMED_OUT,
    UNREACHABLE,
    UNRESOLVED,
    SILENT,
    STRANGER,
    RUNNING,
    CHECKING,
    OTHER_JOB,
    OTHER_TASK,
)


@dataclass(frozen=True)
class Reach:
    """How far a task came with another one: one of the kinds above, and what is known beyond."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


@dataclass(frozen=True, kw_only=True)
class Hello:
    """Who a task is; the first message in each direction of a connection.

    Attributes:
      token: digest of the job's token.
      purpose: `training`, or `check` for the command.
      task: the task that speaks.
      incarnation: random; a task that is started again has another one.
      host: the name of its machine.
      pid: its process.
      cluster: the cluster as this task has been told of it.
      strategy: the strategy that it is to train under.
      versions: what `versions` returned there.
      clock: its wall clock, in seconds since the epoch.
    """

    token: str
    purpose: str
    task: Task
    incarnation: str
    host: str
    pid: int
    cluster: Cluster
    strategy: str
    versions: Mapping[str, str]
    clock: float

    @property
    def place(self) -> str:
        """Where the process is, for people."""
        return f"on host {self.host}, process {self.pid}"


@dataclass(frozen=True)
class Row:
    """What a task knows of the others; sent again and again, and answered by another one.

    Attributes:
      reach: how far it came with the tasks that it does not reach.
      heard: the tasks that it has a connection from.
      complete: whether it has met every other task.
      noted: in an answer: whether the sender of what is answered is known to be complete.
    """

    reach: Mapping[Task, Reach] = field(default_factory=dict)
    heard: tuple[Task, ...] = ()
    complete: bool = False
    noted: bool = False


@dataclass(frozen=True)
class Verdict:
    """Why the job cannot start, or nothing where all have met; ends the receiver's meeting too."""

    text: str


Message = Hello | Row | Verdict


def versions(strategy: str) -> dict[str, str]:
    """The versions that all tasks must share; Horovod's only where it does the distributing."""
    found = {"python": ".".join(map(str, sys.version_info[:2])), "tfdist": __version__}
    engines = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "keras": ("keras",)}
    if strategy.startswith("horovod"):
        engines["horovod"] = ("horovod",)
    for name, distributions in engines.items():
        for distribution in distributions:
            try:
                found[name] = importlib.metadata.version(distribution)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def encode(message: Message) -> bytes:
    """The line that `decode` reads back."""
    fields: dict[str, Any]
    if isinstance(message, Hello):
        fields = {**vars(message), "task": str(message.task), "cluster": message.cluster.jobs()}
    elif isinstance(message, Row):
        reach = {
            str(task): [reach.kind, reach.detail[:_TEXT_LIMIT]]
            for task, reach in message.reach.items()
        }
        fields = {**vars(message), "reach": reach, "heard": [str(task) for task in message.heard]}
    else:
        # A verdict names a few tasks; its length is bounded for the sake of the reader.
        fields = {"text": message.text[:_VERDICT_LIMIT]}
    said = {"protocol": _PROTOCOL, "kind": type(message).__name__, **fields}
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message | None:
    """The message that a line is; None for anything else."""
    if len(line) > LIMIT or not line.endswith(b"\n"):
        return None
    try:
        said = json.loads(line)
        if not isinstance(said, dict) or said.get("protocol") != _PROTOCOL:
            return None
        return _DECODERS[said["kind"]](said)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UsageError):
        return None


def _hello(said: Mapping[str, Any]) -> Hello:
    jobs = said["cluster"]
    if not set(jobs) <= set(JOB_NAMES):
        raise ValueError("jobs")
    clock = said["clock"]
    if not isinstance(clock, (int, float)) or not math.isfinite(clock):
        raise ValueError("clock")
    if type(said["pid"]) is not int:
        raise ValueError("pid")
    cluster, task = Cluster(**jobs), _task(said["task"])
    cluster.check(task)
    return Hello(
        token=_text(said["token"]),
        purpose=_text(said["purpose"]),
        task=task,
        incarnation=_text(said["incarnation"]),
        host=_text(said["host"]),
        pid=said["pid"],
        cluster=cluster,
        strategy=_text(said["strategy"]),
        versions={_text(name): _text(version) for name, version in said["versions"].items()},
        clock=float(clock),
    )


def _row(said: Mapping[str, Any]) -> Row:
    reach = {}
    for task, (kind, detail) in said["reach"].items():
        if kind not in _KINDS:
            raise ValueError("kind")
        reach[_task(task)] = Reach(kind, _text(detail))
    if not isinstance(said["heard"], list):
        raise TypeError("heard")
    return Row(
        reach=reach,
        heard=tuple(map(_task, said["heard"])),
        complete=said["complete"] is True,
        noted=said["noted"] is True,
    )


def _verdict(said: Mapping[str, Any]) -> Verdict:
    return Verdict(_text(said["text"], _VERDICT_LIMIT))


_DECODERS: Mapping[str, Callable[[Mapping[str, Any]], Message]] = {
    "Hello": _hello,
    "Row": _row,
    "Verdict": _verdict,
}


def _task(value: str) -> Task:
    match = _TASK.fullmatch(value)
    if match is None:
        raise ValueError("task")
    return Task(match[1], int(match[2]))


def _text(value: str, limit: int = _TEXT_LIMIT) -> str:
    # What is printed on a terminal must not be able to steer it.
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise ValueError("text")
    return value
