"""Draws the curves of one or several trainings. Needs matplotlib: `pip install 'tfdist[plot]'`.

plot(["/shared/run1", "/shared/run2"], "curves.png")
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tfdist.cluster.task_types import EVALUATOR
from tfdist.errors import UsageError, log, os_error_is_usage_error
from tfdist.process.paths import local_path
from tfdist.tools.watch.training_log import SPEED, Axis, Run

#: The formats of pictures, by their extensions.
FORMATS = (".png", ".svg", ".pdf")
_LABELS = {"epoch": "epoch", "step": "step", "time": "minutes since the start"}
_COLUMNS = 3
_WIDTH, _HEIGHT = 4.5, 3.4


def plot(
    output_dirs: Iterable[str | os.PathLike[str]],
    picture: str | os.PathLike[str],
    *,
    axis: Axis | None = None,
    metrics: Sequence[str] | None = None,
) -> bool:
    """Draws each metric and the examples per second of all runs, and marks their restarts.

    Args:
      output_dirs: the output directories, whose trainings may still be running.
      picture: the file to write, in the format of its extension, one of `FORMATS`.
      axis: what the curves are drawn over; None for epochs, and steps of Estimators.
      metrics: the metrics, as Keras names them; None for all.

    Returns:
      Whether the file was written. Without matplotlib a line is logged instead: a training that is
      complete should not fail for it.

    Raises:
      UsageError: a directory has no metrics, a metric is in none of them, or the picture cannot be
        written.
    """
    suffix = Path(picture).suffix.lower()
    if suffix not in FORMATS:
        raise UsageError.choice("--output", os.fspath(picture), FORMATS)
    runs = [Run.of(output_dir) for output_dir in output_dirs]
    panels = panels_of(runs, metrics)
    drawn = draw(runs, panels, suffix.removeprefix("."), axis or runs[0].axis)
    if drawn is None:
        return False
    write(picture, drawn)
    log(f"plotted the learning curves: {os.fspath(picture)}")
    return True


def draw(runs: Sequence[Run], panels: Sequence[str], kind: str, axis: Axis) -> bytes | None:
    """A picture with a panel for each metric; None if matplotlib is not installed, which is logged.

    Args:
      runs: the runs, drawn over each other.
      panels: the names of the metrics.
      kind: `png`, `svg` or `pdf`.
      axis: what the curves are drawn over.
    """
    try:
        import matplotlib
    except ImportError:
        log("no learning curves, because matplotlib is missing: pip install 'tfdist[plot]'")
        return None

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(len(panels), _COLUMNS)
    rows = -(-len(panels) // columns)
    size = (_WIDTH * columns, _HEIGHT * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for place, name in zip(axes.flat, panels, strict=False):
        _draw(place, name, runs, axis)
    for unused in axes.flat[len(panels) :]:
        unused.set_visible(False)
    picture = io.BytesIO()
    figure.savefig(picture, format=kind, dpi=120)
    pyplot.close(figure)
    return picture.getvalue()


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes the file of `--output`.

    Raises:
      UsageError: it cannot be written.
    """
    with os_error_is_usage_error("--output", os.fspath(path), "a file that this process can write"):
        local_path("--output", path).write_bytes(content)


def panels_of(runs: Sequence[Run], metrics: Sequence[str] | None = None) -> list[str]:
    """The metrics of the runs and the examples per second, or only the given `metrics`.

    Raises:
      UsageError: a metric is in no run.
    """
    known = list(dict.fromkeys(name for run in runs for name in run.metrics))
    for name in metrics or ():
        if name not in [*known, SPEED]:
            raise UsageError.choice("--metrics", name, [*known, SPEED])
    has_speed = any(SPEED in record for run in runs for record in run.epochs)
    return list(metrics or [*known, *([SPEED] if has_speed else [])])


def _draw(place: Any, name: str, runs: Sequence[Run], axis: Axis) -> None:
    """Draws a metric of all runs."""
    names = _names(runs)
    values: list[float] = []
    for number, run in enumerate(runs):
        label = f"{names[number]}: " if len(runs) > 1 else ""
        sources = [
            ("training", "-", ".", run.curve(run.epochs, name, axis)),
            ("validation", "--", ".", run.curve(run.epochs, f"val_{name}", axis)),
            # An evaluator often has the same values as the validation: both are to be seen.
            (EVALUATOR, "", "x", run.curve(run.evaluations, name, axis)),
        ]
        for order, (source, line, marker, (places, found)) in enumerate(sources):
            if found:
                # The colors tell the sources of one run, and the runs of several.
                color = f"C{number if len(runs) > 1 else order}"
                style = {"linestyle": line, "color": color, "marker": marker}
                place.plot(places, found, label=label + source, markersize=4, **style)
                values += found
        for count, restart in enumerate(run.restarts(axis)):
            color = f"C{number}" if len(runs) > 1 else "0.5"
            mark = {"color": color, "linestyle": (0, (1, 2)), "linewidth": 1}
            place.axvline(restart, label=None if count else f"{label}restart", **mark)
    place.set_xlabel(_LABELS[axis])
    if axis != "time":
        place.locator_params(axis="x", integer=True)
    place.set_ylabel(name)
    place.grid(alpha=0.3)
    if name == "loss" and values and min(values) > 0:
        place.set_yscale("log")
    elif "accuracy" in name:
        place.set_ylim(0, 1)
    elif name.endswith("_per_second"):
        place.set_ylim(bottom=0)
    if place.get_legend_handles_labels()[0]:
        place.legend(fontsize="small")


def _names(runs: Sequence[Run]) -> list[str]:
    """The last parts of the paths if all of them differ, else the whole paths."""
    last = [run.path.resolve().name for run in runs]
    return last if len(set(last)) == len(last) else [os.fspath(run.path) for run in runs]
