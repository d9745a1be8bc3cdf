"""What a meeting found, in words: the sentence that names the task at fault, and who reaches whom.

print(explain(found))           # worker:2 has not started: nothing listens at 10.0.0.4:2222.
print(matrix(found))            # … chief:0 → worker:2 10.0.0.4:2222 refused
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tfdist.cluster import Cluster, Task
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.conflicts import names
from tfdist.coordination.startup.protocol import Hello, Reach, Row

# Up to this many tasks, each pair that fails has a line of its own; and the widest grid.
_FEW_TASKS, _GRID_WIDTH = 16, 100

_SHORT = {
    protocol.NOT_TRIED: "not tried",
    protocol.TIMED_OUT: "timed out",
    protocol.UNRESOLVED: "no such host",
    protocol.SILENT: "silent",
    protocol.STRANGER: "stranger",
    protocol.RUNNING: "running",
    protocol.CHECKING: "check",
    protocol.OTHER_JOB: "other job",
    protocol.OTHER_TASK: "other task",
}


@dataclass(frozen=True)
class Found:
    """What a task knows of a meeting.

    Attributes:
      cluster: the tasks.
      task: the one that knows.
      rows: the last row of each task that has sent one, and this task's own.
      hellos: what each task has said of itself.
      present: the tasks that this one has a connection with.
    """

    cluster: Cluster
    task: Task
    rows: Mapping[Task, Row]
    hellos: Mapping[Task, Hello] = field(default_factory=dict)
    present: frozenset[Task] = frozenset()

    def failures(self, target: Task) -> dict[Task, Reach]:
        """How far those came with `target` that do not reach it."""
        rows = ((task, self.rows.get(task, Row())) for task in self.cluster.tasks())
        return {task: row.reach[target] for task, row in rows if target in row.reach}

    def is_heard(self, target: Task) -> bool:
        """Whether anyone has a connection from `target`."""
        heard = any(target in row.heard for row in self.rows.values())
        return heard or target == self.task or target in self.present


def explain(found: Found) -> str:
    """Why the tasks have not met, the tasks at fault first."""
    absent: dict[str, list[Task]] = {}
    sentences = []
    for target in found.cluster.tasks():
        failures = found.failures(target)
        if not failures:
            continue
        # What this task sees itself is the newest.
        reach = failures.get(found.task) or next(iter(failures.values()))
        address = found.cluster.address(target)
        hello = found.hellos.get(target)
        if reach.kind == protocol.RUNNING:
            sentences.append(
                f"{target} is running already: a TensorFlow server answers at {address}. "
                "End the older process, or start the job when it has ended."
            )
        elif reach.kind in (protocol.STRANGER, protocol.SILENT):
            sentences.append(
                f"{target} is not at its address {address}: {reach}. "
                "Correct the address, or end that program."
            )
        elif reach.kind in (protocol.OTHER_JOB, protocol.CHECKING):
            sentences.append(f"{target} is not at its address {address}: {reach}.")
        elif found.is_heard(target):
            place = f" {hello.place}," if hello else ""
            sentences.append(
                f"{target} runs{place} but is not reached at its address {address} by "
                f"{names(failures)} ({reach}): the address is wrong, or a firewall is between."
            )
        elif hello is not None:
            sentences.append(f"{target} was here ({hello.place}) and has ended.")
        else:
            absent.setdefault(reach.kind, []).append(target)
    sentences = [_absent(found.cluster, kind, tasks) for kind, tasks in absent.items()] + sentences
    if not sentences:
        late = [
            task
            for task in found.cluster.tasks()
            if task != found.task and not found.rows.get(task, Row()).complete
        ]
        sentences = [f"{names(late)} did not say in time whom they reach."]
    if len(sentences) > 4:
        sentences = [*sentences[:4], f"{len(sentences) - 4} more tasks are not reached."]
    return " ".join(sentences)


def waiting(found: Found, incomplete: Iterable[Task]) -> str:
    """Whom this task waits for, and why."""
    own = found.rows[found.task].reach
    why = []
    for target in incomplete:
        others = found.rows.get(target, Row()).reach
        if target in own:
            why.append(f"{target} ({found.cluster.address(target)} {own[target]})")
        elif not own:
            why.append(f"{target}" + (f" (which does not reach {names(others)})" if others else ""))
    if len(why) > 4:
        why = [*why[:4], f"{len(why) - 4} more"]
    return ", ".join(why)


def matrix(found: Found) -> str:
    """Who reaches whom: a grid where it fits, and the pairs that fail, in groups in a large job."""
    tasks = found.cluster.tasks()
    lines = _grid(found, tasks) if len(tasks) <= _FEW_TASKS else []
    if any(len(line) > _GRID_WIDTH for line in lines):
        lines = []
    for target in tasks:
        address = found.cluster.address(target)
        failures = found.failures(target)
        groups: dict[str, list[Task]] = {}
        for task, reach in failures.items():
            groups.setdefault(str(reach), []).append(task)
        for reason, sources in groups.items():
            if len(tasks) <= _FEW_TASKS:
                lines += [f"{source} → {target} {address} {reason}" for source in sources]
            else:
                lines.append(f"{names(sources)} → {target} {address} {reason}")
    silent = [task for task in tasks if task not in found.rows]
    if silent:
        lines.append(f"nothing is known from {names(silent)}")
    return "\n".join(f"  {line}" for line in lines)


def _grid(found: Found, tasks: tuple[Task, ...]) -> list[str]:
    cells = [["from \\ to", *map(str, tasks)]]
    for source in tasks:
        row = found.rows.get(source)
        cells.append([str(source)])
        for target in tasks:
            if source == target:
                cells[-1].append("-")
            elif row is None:
                cells[-1].append("?")
            elif target in row.reach:
                kind = row.reach[target].kind
                cells[-1].append(_SHORT.get(kind, kind))
            else:
                cells[-1].append("ok")
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def _absent(cluster: Cluster, kind: str, tasks: list[Task]) -> str:
    have = "has" if len(tasks) == 1 else "have"
    where = ", ".join(cluster.address(task) for task in tasks[:6])
    where += f" and {len(tasks) - 6} more" if len(tasks) > 6 else ""
    if kind == protocol.UNRESOLVED:
        return f"{names(tasks)} {have} a host name that does not resolve: {where}."
    if kind in (protocol.REFUSED, protocol.NOT_TRIED):
        return f"{names(tasks)} {have} not started: nothing listens at {where}."
    return (
        f"{names(tasks)} {have} not started, or the address is wrong or behind a firewall: "
        f"{where} {kind}."
    )
