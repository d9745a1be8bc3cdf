"""The learning curves of small metrics logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes

from tfdist.errors import UsageError
from tfdist.training import curves

pytestmark = pytest.mark.stacks("2.15", "newest")

PNG = b"\x89PNG"


def write(path: Path, *records: dict[str, Any], end: str = "") -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)


def drawn(monkeypatch: pytest.MonkeyPatch, directory: Path) -> dict[str, dict[str, Any]]:
    """Plots `directory`; the epochs and values of each curve, by the labels of axis and curve."""
    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    assert curves.plot(directory, directory / "curves.png")
    monkeypatch.undo()
    panels: list[Axes] = pyplot.gcf().axes
    result: dict[str, dict[str, Any]] = {
        panel.get_ylabel(): {
            str(line.get_label()): [np.asarray(axis).tolist() for axis in line.get_data()]
            for line in panel.lines
        }
        for panel in panels
    }
    pyplot.close("all")
    return result


def test_the_curves_are_those_of_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = [
        {"epoch": 1, "loss": 2.0, "accuracy": 0.25, "val_loss": 1.0, "val_accuracy": 0.5},
        {"epoch": 2, "loss": 1.0, "accuracy": 0.5},
    ]
    # Another task may be writing its next line.
    write(tmp_path / "metrics.jsonl", *epochs, end='{"epoch": 3, "lo')
    write(tmp_path / "eval_metrics.jsonl", {"epoch": 2, "loss": 0.5, "accuracy": 0.75})

    assert drawn(monkeypatch, tmp_path) == {
        "loss": {
            "training": [[1, 2], [2.0, 1.0]],
            "validation": [[1], [1.0]],
            "test (evaluator)": [[2], [0.5]],
        },
        "accuracy": {
            "training": [[1, 2], [0.25, 0.5]],
            "validation": [[1], [0.5]],
            "test (evaluator)": [[2], [0.75]],
        },
    }
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_a_model_without_metrics_has_no_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "metrics.jsonl", {"epoch": 1, "loss": 2.0})

    assert drawn(monkeypatch, tmp_path) == {
        "loss": {"training": [[1], [2.0]]},
        "accuracy": {},
    }


def test_a_directory_without_metrics_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        curves.plot(tmp_path, tmp_path / "curves.png")
    error = raised.value
    assert (error.field, error.received) == ("output_dir", str(tmp_path))
    assert error.accepted == "a directory with metrics.jsonl"


def test_without_matplotlib_a_line_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "metrics.jsonl", {"epoch": 1, "loss": 2.0})
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert not curves.plot(tmp_path, tmp_path / "curves.png")
    assert "pip install 'tfdist[plot]'" in capfd.readouterr().err
    assert not (tmp_path / "curves.png").exists()
