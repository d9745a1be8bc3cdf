"""A training on one HTML page, which needs no other file and no server.

page = page_of(Run.of("/shared/run1"))
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from html import escape
from typing import Any

from tfdist.cluster.task_types import EVALUATOR
from tfdist.process import quantities
from tfdist.process.version import __version__
from tfdist.storage.output_directory import (
    OutputDirectory,
    read_text,
    saved_checkpoints,
    size_and_time,
)
from tfdist.tools.watch import curves
from tfdist.tools.watch.training_log import SPEED, Run
from tfdist.training.records import events

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 0 auto;
       padding: 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ccc; }
.scrolls { overflow-x: auto; background:
    linear-gradient(to left, white 1rem, transparent) right / 2rem 100% no-repeat local,
    linear-gradient(to left, #0003, transparent) right / .7rem 100% no-repeat scroll; }
table { border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0;
         overflow-wrap: anywhere; }
th { min-width: 7rem; }
.scrolls td, .scrolls th { white-space: nowrap; }
tr + tr { border-top: 1px solid #eee; }
.curves { display: flex; flex-wrap: wrap; }
svg { width: 100%; max-width: 29rem; height: auto; }
@media (max-width: 40rem) { .scrolls { font-size: .8rem; }
    .scrolls th { white-space: normal; min-width: 0; overflow-wrap: normal; }
    .scrolls th, .scrolls td { padding-right: .5rem; } }
pre { overflow-x: auto; background: #f6f6f6; padding: .5rem; font-size: .85rem; }
.warning { background: #fff3cd; padding: .5rem 1rem; margin: .5rem 0; overflow-wrap: anywhere; }
footer { color: #666; font-size: .85rem; margin-top: 3rem; }
"""


def page_of(run: Run) -> str:
    """The HTML page about a run."""
    output = OutputDirectory(run.path)
    hang = read_text(output.hang_report)
    starts = [event for event in run.events if event.get("event") == events.START]
    start = starts[-1] if starts else {}
    sections = {
        "Result": _facts(_result(run, output)),
        "Curves": _curves(run),
        "Job": _facts(_job(start)),
        "Tasks": _facts(start.get("tasks", {})),
        "Starts and interruptions": _records(_events(run)),
        "Last metrics": _records(run.epochs[-10:]),
        "Evaluations": _records(run.evaluations[-10:]),
        "Checkpoints": _records(_checkpoints(output)),
        "Hang report": f"<pre>{escape(hang)}</pre>" if hang else "",
    }
    title = escape(f"{run.path.resolve().name}: a training with tfdist")
    body = [
        *(f'<p class="warning">{escape(text)}</p>' for text in _warnings(run, hang)),
        *(f"<section><h2>{name}</h2>{part}</section>" for name, part in sections.items() if part),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(str(run.path.resolve()))}</h1>",
            *body,
            f"<footer>tfdist {__version__}, {_time(time.time())}</footer>",
            "</body></html>\n",
        ]
    )


def _facts(facts: Mapping[str, Any]) -> str:
    """A table with a line for each fact; empty without facts."""
    rows = (
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table>{''.join(rows)}</table>" if facts else ""


def _records(records: Iterable[Mapping[str, Any]]) -> str:
    """A table with a line for each record, and a column for each name; empty without records."""
    known = list(records)
    names = list(dict.fromkeys(name for record in known for name in record))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = [
        "".join(f"<td>{escape(_cell(name, record.get(name, '')))}</td>" for name in names)
        for record in known
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="scrolls"><table><tr>{head}</tr>{body}</table></div>' if body else ""


def _cell(name: str, value: Any) -> str:
    if name == "time":
        return _time(value)
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return "not finite" if value is None else str(value)


def _result(run: Run, output: OutputDirectory) -> dict[str, str]:
    last, evaluated = (records[-1] if records else {} for records in (run.epochs, run.evaluations))
    found = {"state": "complete" if output.is_complete else "not complete"}
    if "epoch" in last:  # Estimators have no epochs.
        found["epochs"] = str(last["epoch"])
    found["steps"] = str(last.get("step", evaluated.get("global_step", "unknown")))
    for kind, record in (("training", last), (EVALUATOR, evaluated)):
        for name, value in record.items():
            if name.removeprefix("val_") in run.metrics:
                found[f"{name} ({kind})"] = _cell(name, value)
    _, speeds = run.curve(run.epochs, SPEED, "epoch")
    if speeds:
        found["examples/s"] = f"{quantities.rate(max(speeds))} in the fastest epoch"
    if times := run.times:
        length = quantities.duration(max(times) - min(times))
        found["time"] = f"{length}, from {_time(min(times))} to {_time(max(times))}"
    if output.has_model:
        found["exported model"] = str(output.saved_model.resolve())
    return found


def _job(start: Mapping[str, Any]) -> dict[str, str]:
    names = ("strategy", "command", "versions")
    found = {name: str(start[name]) for name in names if name in start}
    if flags := start.get("flags"):
        found["flags"] = " ".join(f"--{name}={value}" for name, value in flags.items())
    return found


def _curves(run: Run) -> str:
    """The curves as a part of the page; empty if there is nothing to draw or no matplotlib."""
    pictures = []
    for panel in curves.panels_of([run]):
        # A picture for each, so that a phone shows one below the other.
        drawn = curves.draw([run], [panel], "svg", run.axis)
        if drawn is None:
            return ""
        # Without the XML declaration, which HTML does not have.
        pictures.append(drawn[drawn.index(b"<svg") :].decode())
    return f'<div class="curves">{"".join(pictures)}</div>' if pictures else ""


def _warnings(run: Run, hang: str) -> Iterator[str]:
    restarts = len(run.restarts("step"))
    if restarts:
        yield f"The training was started again {restarts} time{'s' * (restarts > 1)}."
    for record in run.epochs:
        wrong = [name for name, value in record.items() if value is None]
        if wrong:
            name = "epoch" if "epoch" in record else "step"
            yield f"Not finite in {name} {record.get(name)}: {', '.join(wrong)}."
            break
    if hang:
        yield "The job made no step, or lost a task: see the hang report below."


def _events(run: Run) -> Iterator[dict[str, Any]]:
    """The events; a start after a start tells that the job was lost in between."""
    before = ""
    for event in run.events:
        name = str(event.get("event", ""))
        place = {"epochs": event.get("epoch", ""), "step": event["step"]}
        if name == before == events.START:
            lost = [line["time"] for line in run.epochs if line["time"] < event["time"]]
            yield {"time": max(lost, default=event["time"]), "event": "lost after this", **place}
        yield {"time": event["time"], "event": name, **place}
        before = name


def _checkpoints(output: OutputDirectory) -> Iterator[dict[str, Any]]:
    for step, checkpoint in saved_checkpoints(output):
        # A training that goes on may delete it meanwhile.
        with suppress(FileNotFoundError):
            size, saved = size_and_time(checkpoint)
            row = {"step": f"{step:,}", "size": quantities.size(size), "saved": _time(saved)}
            yield {**row, "path": checkpoint}


def _time(seconds: float) -> str:
    """Formats a time in the time zone of this machine."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
