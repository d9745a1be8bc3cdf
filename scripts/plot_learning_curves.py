"""Plots the learning curves of an output directory.

python scripts/plot_learning_curves.py OUTPUT_DIR CURVES.png
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def read(path: Path, name: str) -> tuple[list[float], list[float]]:
    """The epochs and values of the lines that contain `name`."""
    lines = path.read_text().splitlines() if path.exists() else []
    records = [record for record in map(json.loads, lines) if name in record]
    return [record["epoch"] for record in records], [record[name] for record in records]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    metrics = arguments.output_dir / "metrics.jsonl"
    if not metrics.exists():
        print(
            f"output_dir: received {str(arguments.output_dir)!r}; accepted: a directory with "
            "metrics.jsonl. Train first, with job.callbacks(output_dir).",
            file=sys.stderr,
        )
        return 2

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    sources = [
        ("training", metrics, ""),
        ("validation", metrics, "val_"),
        ("test (evaluator)", arguments.output_dir / "eval_metrics.jsonl", ""),
    ]
    for panel, name in zip(axes, ("loss", "accuracy"), strict=True):
        for label, path, prefix in sources:
            epochs, values = read(path, prefix + name)
            if epochs:
                panel.plot(epochs, values, marker=".", label=label)
        panel.set_xlabel("epoch")
        panel.set_ylabel(name)
        panel.grid(alpha=0.3)
    axes[0].set_yscale("log")
    axes[1].set_ylim(0, 1)
    axes[1].legend(loc="lower right")
    figure.savefig(arguments.picture, dpi=120)
    print(f"{arguments.picture}: plotted the learning curves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
