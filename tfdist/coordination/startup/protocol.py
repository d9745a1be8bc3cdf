"""The messages between the tasks of a starting job: one bounded line of JSON each.

    writer.write(encode(Report(reach={Task("ps", 0): Reach(REFUSED)})))
    message = decode(await reader.readline())    # None for anything else

A connection begins with a challenge in each direction and a proof; see `channel`. Then each task
sends its hello, with only a digest of the cluster, so that the bytes of a start grow with the tasks
and not with their square. Two tasks with different clusters then send each other a `Description`.
Nothing that is received is executed or unpickled. A line is no message if it is longer than `LIMIT`
bytes, if it is not JSON of exactly these shapes, or if it contains text that cannot be printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tfdist.cluster import Cluster, Task, task_types
from tfdist.coordination.seal import NONCE_LENGTH, new_nonce
from tfdist.errors import UsageError
from tfdist.process.packages import installed

#: The longest line that is read, in bytes. The description of a job of 10,000 tasks is shorter.
LIMIT = 1 << 20

_PROTOCOL = "tfdist/7"
# The longest text, in characters, and the longest list.
_TEXT_LIMIT, _LINES = 4096, 50
_LONGEST_NAME = 100
_TASK = re.compile(r"(\w+):([0-9]{1,6})")

# The outcome of an attempt to reach a task; `Reach.kind`.
REACHED = "reached"
NOT_TRIED = "not tried yet"
REFUSED = "refused"
TIMED_OUT = "timed out"
UNREACHABLE = "unreachable"
UNRESOLVED = "name does not resolve"
SILENT = "connected, but nothing answers"
STRANGER = "another program answers"
RUNNING = "a TensorFlow server is running"
CHECKING = "is running `tfdist check` instead of training, or vice versa"
OTHER_JOB = "another job answers"
OTHER_TASK = "another task answers"


@dataclass(frozen=True)
class Reach:
    """The outcome of an attempt to reach a task: one of the kinds above, and a detail."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


@dataclass(frozen=True)
class Challenge:
    """A random text; the other task proves with it that it knows the job's token."""

    nonce: str = field(default_factory=new_nonce)

    def __post_init__(self) -> None:
        if len(self.nonce) != NONCE_LENGTH:
            raise ValueError("nonce")


@dataclass(frozen=True)
class Proof:
    """Its code proves that the sender knows the job's token."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a task is: the first message in each direction after the proof.

    Attributes:
      cluster: the cluster that it was configured with.
      task: the task that sends it.
      strategy: the strategy that it is configured to train under, as text.
      versions: what `versions` returned there.
      purpose: `training`, or `check` for the command.
      report_port: where it answers when another task asks what it does; 0 if it does not.
      incarnation: a random number; a restarted task has a new one.
      host: the name of its machine.
      pid: its process.
    """

    cluster: Cluster
    task: Task
    strategy: str
    versions: Mapping[str, str]
    purpose: str = "training"
    report_port: int = 0
    incarnation: str = field(default_factory=new_nonce)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.cluster.check(self.task)
        if not 0 <= self.report_port < 1 << 16:
            raise ValueError("report_port")

    @property
    def place(self) -> str:
        """The host and the process, for a message to the user."""
        return f"on host {self.host}, process {self.pid}"


@dataclass(frozen=True)
class OtherCluster:
    """What `decode` returns for the hello of a task with another cluster."""


@dataclass(frozen=True)
class Description:
    """The cluster that a task was configured with."""

    cluster: Cluster


@dataclass(frozen=True)
class Report:
    """What a task reports to the chief, at every change and at least once a second.

    Attributes:
      reach: the outcome for each peer that it does not reach.
      complete: whether it reaches every peer that it must connect to.
      gives_up: whether its timeout has passed.
    """

    reach: Mapping[Task, Reach] = field(default_factory=dict)
    complete: bool = False
    gives_up: bool = False


@dataclass(frozen=True)
class Status:
    """What the chief sends to a waiting task once a second: the tasks that the job waits for."""

    waiting: str = ""


@dataclass(frozen=True)
class Verdict:
    """The result, which the chief sends to every task.

    Attributes:
      text: why the job cannot start; empty if it can.
      details: lines that show which task does not reach which.
    """

    text: str
    details: tuple[str, ...] = ()


Message = Challenge | Proof | Hello | Description | Report | Status | Verdict
_MESSAGES: Mapping[str, type[Message]] = {
    kind.__name__: kind for kind in (Challenge, Proof, Hello, Description, Report, Status, Verdict)
}


def versions(packages: Iterable[str] = (), script: str = "") -> dict[str, str]:
    """The versions that must be equal in all tasks that have them.

    Args:
      packages: packages that the strategy needs in addition to TensorFlow and Keras.
      script: the path of the script; tasks may have scripts of different names.
    """
    found = installed(*packages)
    with suppress(OSError):
        content = Path(script).read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:12]
        name = ascii(os.path.basename(script))[:_LONGEST_NAME]
        found[f"the script {name}"] = f"{len(content)} bytes with SHA-256 {digest}"
    return found


def encode(message: Message) -> bytes:
    """The line that `decode` reads back; too long texts are cut."""
    content: dict[str, Any] = {name: _cut(value) for name, value in vars(message).items()}
    if isinstance(message, Hello):
        content["cluster"] = message.cluster.digest
    elif isinstance(message, Report):
        content["reach"] = {str(task): reach for task, reach in message.reach.items()}
    content |= {"protocol": _PROTOCOL, "kind": type(message).__name__}
    return json.dumps(content, separators=(",", ":"), default=_plain).encode() + b"\n"


def decode(line: bytes, cluster: Cluster | None = None) -> Message | OtherCluster | None:
    """The message in a line; None for anything else.

    Args:
      line: what was received.
      cluster: the cluster to which the digest in a hello may belong.
    """
    if len(line) > LIMIT or not line.endswith(b"\n"):
        return None
    try:
        content = json.loads(line)
        if content["protocol"] != _PROTOCOL:
            return None
        kind = _MESSAGES[content["kind"]]
        if kind is Hello:
            if cluster is None or _text(content["cluster"]) != cluster.digest:
                return OtherCluster()
            content["cluster"] = cluster
        return kind(
            **{field.name: _READ[field.type](content[field.name]) for field in fields(kind)}
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UsageError):
        return None


def _cut(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_cut(each) for each in value[:_LINES]]
    return value[:_TEXT_LIMIT] if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Converts a value that JSON does not support."""
    match value:
        case Cluster():
            return value.jobs()
        case Reach():
            return [value.kind, _cut(value.detail)]
    return str(value)


def _text(value: Any) -> str:
    # Text from a stranger must not be able to control the user's terminal.
    if not isinstance(value, str) or len(value) > _TEXT_LIMIT or not value.isprintable():
        raise ValueError("text")
    return value


def _lines(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError("lines")
    return tuple(map(_text, value))


def _texts(value: Any) -> dict[str, str]:
    return {_text(name): _text(each) for name, each in value.items()}


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("number")
    return value


def _task(value: Any) -> Task:
    match = _TASK.fullmatch(value)
    if match is None or match[1] not in task_types.in_cluster():
        raise ValueError("task")
    return Task(match[1], int(match[2]))


def _cluster(value: Any) -> Cluster:
    # `decode` has replaced the digest in a hello.
    if isinstance(value, Cluster):
        return value
    if not set(value) <= set(task_types.in_cluster()):
        raise ValueError("jobs")
    return Cluster(**value)


def _reach(value: Any) -> dict[Task, Reach]:
    return {
        _task(task): Reach(_text(kind), _text(detail)) for task, (kind, detail) in value.items()
    }


# How a field is read, by its annotation.
_READ: Mapping[Any, Callable[[Any], Any]] = {
    "str": _text,
    "int": _whole,
    "bool": bool,
    "tuple[str, ...]": _lines,
    "Mapping[str, str]": _texts,
    "Mapping[Task, Reach]": _reach,
    "Task": _task,
    "Cluster": _cluster,
}
