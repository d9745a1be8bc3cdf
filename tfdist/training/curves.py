"""Plots the learning curves of an output directory. Needs matplotlib: `pip install 'tfdist[plot]'`.

plot("/shared/run1", "curves.png")
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from tfdist.checkpoints.output_directory import OutputDirectory
from tfdist.errors import UsageError, log


def plot(output_dir: str | os.PathLike[str], picture: str | os.PathLike[str]) -> bool:
    """Plots loss and accuracy by epoch, from the first epoch on, even if the job has resumed.

    Args:
      output_dir: the output directory of a training, which may still be running.
      picture: the file to write, in the format of its extension: `.png`, `.svg` or `.pdf`.

    Returns:
      Whether the file was written. Without matplotlib a line is logged instead: a training that is
      complete should not fail for it.

    Raises:
      UsageError: the directory contains no metrics.
    """
    output = OutputDirectory(output_dir)
    if not output.metrics.exists():
        raise UsageError(
            "output_dir",
            received=os.fspath(output_dir),
            accepted=f"a directory with {output.metrics.name}",
            remedy="Train first, with job.fit or job.callbacks.",
        )
    try:
        import matplotlib
    except ImportError:
        log("no learning curves, because matplotlib is missing: pip install 'tfdist[plot]'")
        return False

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    sources = [
        ("training", output.metrics, ""),
        ("validation", output.metrics, "val_"),
        ("test (evaluator)", output.eval_metrics, ""),
    ]
    for panel, name in zip(axes, ("loss", "accuracy"), strict=True):
        for label, path, prefix in sources:
            epochs, values = _read(path, prefix + name)
            if epochs:
                panel.plot(epochs, values, marker=".", label=label)
        panel.set_xlabel("epoch")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_ylabel(name)
        panel.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[1].set_ylim(0, 1)
    if axes[1].lines:
        axes[1].legend(loc="lower right")
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)
    log(f"plotted the learning curves: {os.fspath(picture)}")
    return True


def _read(path: Path, name: str) -> tuple[list[int], list[float]]:
    """The epochs and values of the lines that contain `name`."""
    text = path.read_text() if path.exists() else ""
    # A job that is running may have written only a part of the last line.
    lines = text[: text.rfind("\n") + 1].splitlines()
    records = [record for record in map(json.loads, lines) if name in record]
    return [record["epoch"] for record in records], [record[name] for record in records]
