"""Explains the findings of the startup barrier: the tasks at fault, and failed connections.

print(explain(findings))            # worker:2 has not started: nothing listens at 10.0.0.4:2222.
print(*details(findings), sep="\n")  #   chief:0 and worker:0 → worker:2 10.0.0.4:2222 refused
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfdist.cluster import Cluster, Task
from tfdist.coordination.startup import protocol
from tfdist.coordination.startup.conflicts import names
from tfdist.coordination.startup.protocol import Hello, Reach, Report

_MAX_SENTENCES = 4


@dataclass(frozen=True)
class Findings:
    """What a task knows of its job.

    Attributes:
      cluster: the tasks.
      task: this task.
      reports: the last report of each task that is connected to this one, and its own.
      hellos: the last hello of each task.
    """

    cluster: Cluster
    task: Task
    reports: Mapping[Task, Report]
    hellos: Mapping[Task, Hello] = field(default_factory=dict)

    def failures(self) -> dict[Task, dict[Task, Reach]]:
        """For each task that is not reached, the tasks that do not reach it, with the outcomes."""
        failures: dict[Task, dict[Task, Reach]] = {}
        for source in self.cluster.tasks():
            for target, reach in self.reports.get(source, Report()).reach.items():
                failures.setdefault(target, {})[source] = reach
        return {task: failures[task] for task in self.cluster.tasks() if task in failures}


def explain(findings: Findings) -> str:
    """Why the barrier does not open, the tasks at fault first."""
    absent: dict[str, list[Task]] = {}
    sentences = []
    for target, failures in findings.failures().items():
        # What this task sees itself is the newest.
        reach = failures.get(findings.task) or next(iter(failures.values()))
        address = findings.cluster.address(target)
        hello = findings.hellos.get(target)
        if reach.kind == protocol.RUNNING:
            sentences.append(
                f"{target} is running already: a TensorFlow server answers at {address}. "
                "End the older process, or wait until it has ended."
            )
        elif reach.kind in (protocol.STRANGER, protocol.SILENT):
            sentences.append(
                f"{target} is not at its address {address}: {reach}. "
                "Correct the address, or end that program."
            )
        elif reach.kind in (protocol.OTHER_JOB, protocol.CHECKING):
            sentences.append(f"{target} is not at its address {address}: {reach}.")
        elif target in findings.reports:
            place = f" {hello.place}" if hello else ""
            sentences.append(
                f"{target} runs{place}, but {names(failures)} cannot reach it at its address "
                f"{address} ({reach}): the address is wrong, or a firewall blocks it."
            )
        elif hello is not None:
            sentences.append(f"{target} started ({hello.place}) and has ended.")
        else:
            absent.setdefault(reach.kind, []).append(target)
    sentences = [_absent(findings.cluster, *item) for item in absent.items()] + sentences
    if not sentences:
        late = [
            task
            for task in findings.cluster.tasks()
            if task != findings.task and not findings.reports.get(task, Report()).complete
        ]
        sentences = [f"{names(late)} did not report in time which tasks it reaches."]
    if len(sentences) > _MAX_SENTENCES:
        more = len(sentences) - _MAX_SENTENCES
        sentences = [*sentences[:_MAX_SENTENCES], f"{more} more tasks are not reached."]
    return " ".join(sentences)


def reasons(findings: Findings, awaited: Sequence[Task]) -> str:
    """The awaited tasks, with reasons; if this task does not reach some, only those."""
    own = findings.reports[findings.task].reach
    why = []
    for target in [task for task in awaited if task in own] or awaited:
        report = findings.reports.get(target)
        if target in own:
            reason = f"{findings.cluster.address(target)} {own[target]}"
        elif report is None:
            reason = "which has not reported yet"
        else:
            reason = f"which does not reach {names(report.reach)}"
        why.append(f"{target} ({reason})")
    if len(why) > _MAX_SENTENCES:
        why = [*why[:_MAX_SENTENCES], f"{len(why) - _MAX_SENTENCES} more"]
    return ", ".join(why)


def details(findings: Findings) -> tuple[str, ...]:
    """Which tasks do not reach which, and why, a line each; and which tasks have not reported."""
    lines = []
    for target, failures in findings.failures().items():
        groups: dict[Reach, list[Task]] = {}
        for source, reach in failures.items():
            groups.setdefault(reach, []).append(source)
        address = findings.cluster.address(target)
        lines += [f"{names(group)} → {target} {address} {why}" for why, group in groups.items()]
    missing = [task for task in findings.cluster.tasks() if task not in findings.reports]
    if missing:
        lines.append(f"no report from {names(missing)}")
    return tuple(f"  {line}" for line in lines)


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
