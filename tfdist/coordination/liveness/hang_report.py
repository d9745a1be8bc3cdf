"""The hang report of a job: what every task did when the job made no step.

reports = collect({"worker:1": ("10.0.0.2", 40123)}, token)
culprit = find_culprit(reports)           # Culprit("worker:1", "is in train.py:40 in slow")
print(text("no step for 62 s", str(culprit), reports))
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tfdist.coordination.liveness import activity
from tfdist.coordination.liveness.activity import State
from tfdist.coordination.liveness.endpoint import ask
from tfdist.coordination.liveness.task_report import TaskReport

#: The name of the report in the output directory.
FILE_NAME = "hang_report.txt"

_CONNECTIONS = 32
_RULE = "-" * 80
_HEADER = ("task", "process", "does", "for", "steps", "last step")

# By task; None for a task that does not answer.
Reports = Mapping[str, TaskReport | None]


@dataclass(frozen=True)
class Culprit:
    """The task for which the others wait, as far as the reports tell.

    Attributes:
      task: its name; empty if no task is different from the others.
      what: what is known about it; the end of a sentence that begins with its name.
    """

    task: str
    what: str

    def __str__(self) -> str:
        return f"{self.task} {self.what}" if self.task else self.what


def collect(endpoints: Mapping[str, tuple[str, int]], token: str) -> dict[str, TaskReport | None]:
    """Asks tasks for their reports, all at the same time.

    Args:
      endpoints: by task, the host and the port of its endpoint.
      token: the job's token.
    """

    def answer(task: str) -> TaskReport | None:
        try:
            return ask(*endpoints[task], token)
        except (OSError, ValueError):
            return None

    with ThreadPoolExecutor(max_workers=_CONNECTIONS) as pool:
        return dict(zip(endpoints, pool.map(answer, endpoints), strict=True))


def find_culprit(reports: Reports) -> Culprit:
    """The task that the others wait for.

    It is one that does not answer; else one that waits for a file; else one that is in code of the
    user, while others wait in TensorFlow; else the one with the fewest steps.
    """
    for task, report in reports.items():
        if report is None:
            return Culprit(task, "does not answer")
    answered = {task: report for task, report in reports.items() if report is not None}
    for task, report in answered.items():
        if report.file_wait:
            place = f", in {report.own_code}" if report.own_code else ""
            return Culprit(task, f"{report.file_wait}{place}")
    in_own_code = [task for task, report in answered.items() if report.own_code]
    if in_own_code and (len(answered) == 1 or len(in_own_code) < len(answered)):
        task = min(in_own_code, key=lambda each: answered[each].record.state.steps)
        return Culprit(task, f"is in {answered[task].own_code}")
    steps = {
        task: report.record.state.steps
        for task, report in answered.items()
        if report.record.state.doing != activity.SERVING
    }
    last = min(steps, key=lambda each: steps[each], default="")
    if last and steps[last] < max(steps.values()):
        what = f"has made {steps[last]} steps, and others {max(steps.values())}"
        place = answered[last].own_code
        return Culprit(last, f"{what}: it is in {place}" if place else what)
    if in_own_code:
        first = in_own_code[0]
        place = answered[first].own_code
        return Culprit("", f"all tasks are in their own code, such as {first} in {place}")
    return Culprit("", "all tasks wait in TensorFlow, after the same number of steps")


def busy(reports: Reports, *, waits_for_lost: bool) -> str:
    """What may take longer than a step, such as `worker:0 is saving`; empty if there is nothing.

    Args:
      reports: the reports.
      waits_for_lost: whether the training waits for the return of a task that was lost.
    """
    for task, report in reports.items():
        if report is None:
            if waits_for_lost:
                return f"{task} does not answer"
        elif report.record.state.doing not in (activity.TRAINING, activity.SERVING):
            return f"{task} is {report.record.state.doing}"
    return ""


def longest_silence(reports: Reports) -> float:
    """The longest time without a step of a task, in seconds; infinite if one does not answer."""
    now = time.time()
    silences = [
        math.inf if each is None else now - each.record.state.last_step for each in reports.values()
    ]
    return max(silences, default=math.inf)


def text(what: str, finding: str, reports: Reports, *, now: float | None = None) -> str:
    """The hang report.

    Args:
      what: what has happened, such as `no step for 62 s`.
      finding: what is known about the culprit.
      reports: the reports of all tasks.
      now: the time, in seconds since 1970.
    """
    now = time.time() if now is None else now
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    lines = [f"{when}: {what}", finding, "", *_table(reports, now)]
    for task, report in reports.items():
        if report is None:
            continue
        lines += ["", _RULE, f"{task}: Python stacks", _RULE, report.stacks.rstrip()]
        lines += ["", f"{task}: last events", ""]
        lines += [f"  {now - then:8.1f} s ago  {event}" for then, event in report.record.events]
    return "\n".join(lines) + "\n"


def finding(text: str) -> str:
    """Extracts the line about the culprit from the text of a hang report."""
    return [*text.splitlines(), "", ""][1]


def state_table(states: Iterable[State], now: float) -> list[str]:
    """What tasks do, a line each, with a header.

    Args:
      states: the tasks.
      now: the time, in seconds since 1970.
    """
    return _aligned([_HEADER, *(_cells(state, now) for state in states)])


def _table(reports: Reports, now: float) -> list[str]:
    rows: list[Sequence[str]] = [(*_HEADER, "code")]
    for task, report in reports.items():
        if report is None:
            rows.append((task, "", "does not answer", "", "", "", ""))
        else:
            rows.append((*_cells(report.record.state, now), report.own_code))
    return _aligned(rows)


def _cells(state: State, now: float) -> tuple[str, ...]:
    last = f"{now - state.last_step:.0f} s ago" if state.last_step else "none"
    steps = ("", "") if state.doing == activity.SERVING else (str(state.steps), last)
    process = f"{state.host}:{state.pid}"
    return (state.task, process, state.doing, f"{now - state.since:.0f} s", *steps)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
