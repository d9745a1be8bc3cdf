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
import importlib.metadata
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist.cluster import Cluster, Task, task_types
from tfdist.coordination.seal import NONCE_LENGTH
from tfdist.errors import UsageError
from tfdist.process.version import __version__

#: The longest line that is read, in bytes. The description of a job of 10,000 tasks is shorter.
LIMIT = 1 << 20

_PROTOCOL = "tfdist/5"
# Characters of a text, and of a verdict or of a line of the matrix.
_TEXT_LIMIT, _LINE_LIMIT = 255, 4096
_MATRIX_LINES = 50
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
    """The outcome of an attempt to reach a task: one of the kinds above, and a detail."""

    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} ({self.detail})" if self.detail else self.kind


@dataclass(frozen=True)
class Challenge:
    """A random text; the other task proves with it that it knows the job's token."""

    nonce: str


@dataclass(frozen=True)
class Proof:
    """Its code proves that the sender knows the job's token."""


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a task is: the first message in each direction after the proof.

    Attributes:
      purpose: `training`, or `check` for the command.
      task: the task that sends it.
      incarnation: a random number; a restarted task has a new one.
      host: the name of its machine.
      pid: its process.
      cluster: the cluster that this task was configured with.
      strategy: the strategy that it is configured to train under.
      versions: what `versions` returned there.
      clock: its wall clock, in seconds since the epoch.
      report_port: where it answers when another task asks what it does; 0 if it does not.
    """

    purpose: str
    task: Task
    incarnation: str
    host: str
    pid: int
    cluster: Cluster
    strategy: str
    versions: Mapping[str, str]
    clock: float
    report_port: int = 0

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
      matrix: lines that show which task reaches which.
      warnings: sentences that every task logs.
    """

    text: str
    matrix: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


Message = Challenge | Proof | Hello | Description | Report | Status | Verdict


def versions(packages: Iterable[str] = (), script: str = "") -> dict[str, str]:
    """The versions that must be equal in all tasks that have them.

    Args:
      packages: packages that the strategy needs in addition to TensorFlow and Keras.
      script: the path of the script; tasks may have scripts of different names.
    """
    found = {"python": ".".join(map(str, sys.version_info[:2])), "tfdist": __version__}
    engines = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "keras": ("keras",)}
    engines |= {package: (package,) for package in packages}
    for name, distributions in engines.items():
        for distribution in distributions:
            try:
                found[name] = importlib.metadata.version(distribution)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    with suppress(OSError):
        content = Path(script).read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:12]
        name = ascii(os.path.basename(script))[: _TEXT_LIMIT // 2]
        found[f"the script {name}"] = f"{len(content)} bytes with SHA-256 {digest}"
    return found


def encode(message: Message) -> bytes:
    """The line that `decode` reads back; too long texts are cut."""
    fields: dict[str, Any]
    if isinstance(message, Hello):
        fields = {
            **vars(message),
            "task": str(message.task),
            "cluster": message.cluster.digest,
        }
    elif isinstance(message, Description):
        fields = {"jobs": message.cluster.jobs()}
    elif isinstance(message, Report):
        reach = {
            str(task): [reach.kind, reach.detail[:_TEXT_LIMIT]]
            for task, reach in message.reach.items()
        }
        fields = {**vars(message), "reach": reach}
    elif isinstance(message, Challenge | Proof):
        fields = vars(message)
    elif isinstance(message, Status):
        fields = {"waiting": message.waiting[:_LINE_LIMIT]}
    else:
        fields = {
            "text": message.text[:_LINE_LIMIT],
            "matrix": [line[:_LINE_LIMIT] for line in message.matrix[:_MATRIX_LINES]],
            "warnings": [line[:_LINE_LIMIT] for line in message.warnings[:_MATRIX_LINES]],
        }
    content = {"protocol": _PROTOCOL, "kind": type(message).__name__, **fields}
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


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
        if not isinstance(content, dict) or content.get("protocol") != _PROTOCOL:
            return None
        if content["kind"] == "Hello":
            return _hello(content, cluster)
        return _DECODERS[content["kind"]](content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UsageError):
        return None


def _description(content: Mapping[str, Any]) -> Description:
    jobs = content["jobs"]
    if not set(jobs) <= set(task_types.in_cluster()):
        raise ValueError("jobs")
    return Description(Cluster(**jobs))


def _hello(content: Mapping[str, Any], cluster: Cluster | None) -> Hello | OtherCluster:
    if cluster is None or _text(content["cluster"]) != cluster.digest:
        return OtherCluster()
    clock = content["clock"]
    if not isinstance(clock, (int, float)) or not math.isfinite(clock):
        raise ValueError("clock")
    if type(content["pid"]) is not int:
        raise ValueError("pid")
    report_port = content["report_port"]
    if type(report_port) is not int or not 0 <= report_port < 1 << 16:
        raise ValueError("report_port")
    task = _task(content["task"])
    cluster.check(task)
    return Hello(
        purpose=_text(content["purpose"]),
        task=task,
        incarnation=_text(content["incarnation"]),
        host=_text(content["host"]),
        pid=content["pid"],
        cluster=cluster,
        strategy=_text(content["strategy"]),
        versions={_text(name): _text(version) for name, version in content["versions"].items()},
        clock=float(clock),
        report_port=report_port,
    )


def _report(content: Mapping[str, Any]) -> Report:
    reach = {}
    for task, (kind, detail) in content["reach"].items():
        if kind not in _KINDS:
            raise ValueError("kind")
        reach[_task(task)] = Reach(kind, _text(detail))
    return Report(
        reach=reach,
        complete=content["complete"] is True,
        gives_up=content["gives_up"] is True,
    )


def _status(content: Mapping[str, Any]) -> Status:
    return Status(_text(content["waiting"], _LINE_LIMIT))


def _verdict(content: Mapping[str, Any]) -> Verdict:
    return Verdict(
        _text(content["text"], _LINE_LIMIT),
        _lines(content["matrix"]),
        _lines(content["warnings"]),
    )


_DECODERS: Mapping[str, Callable[[Mapping[str, Any]], Message]] = {
    "Challenge": lambda content: Challenge(_nonce(content["nonce"])),
    "Proof": lambda content: Proof(),
    "Description": _description,
    "Report": _report,
    "Status": _status,
    "Verdict": _verdict,
}


def _task(value: str) -> Task:
    match = _TASK.fullmatch(value)
    if match is None or match[1] not in task_types.in_cluster():
        raise ValueError("task")
    return Task(match[1], int(match[2]))


def _nonce(value: str) -> str:
    if len(_text(value)) != NONCE_LENGTH:
        raise ValueError("nonce")
    return value


def _text(value: str, limit: int = _TEXT_LIMIT) -> str:
    # Text from a stranger must not be able to control the user's terminal.
    if not isinstance(value, str) or len(value) > limit or not value.isprintable():
        raise ValueError("text")
    return value


def _lines(value: list[str]) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MATRIX_LINES:
        raise ValueError("lines")
    return tuple(_text(line, _LINE_LIMIT) for line in value)
