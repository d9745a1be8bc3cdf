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
from tfdist.tools.commands import cli
from tfdist.tools.watch import curves
from tfdist.tools.watch.training_log import SPEED

pytestmark = pytest.mark.stacks("2.15", "newest")

PNG = b"\x89PNG"


def write(path: Path, *records: dict[str, Any], end: str = "") -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)


def drawn(
    monkeypatch: pytest.MonkeyPatch, *directories: Path, **options: Any
) -> dict[str, dict[str, Any]]:
    """Plots directories; the points of each curve and mark, by the labels of axis and curve."""
    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    assert curves.plot(directories, directories[0] / "curves.png", **options)
    monkeypatch.undo()
    panels: list[Axes] = [panel for panel in pyplot.gcf().axes if panel.get_visible()]
    result: dict[str, dict[str, Any]] = {
        panel.get_ylabel(): {
            str(line.get_label()): [np.asarray(axis).tolist() for axis in line.get_data()]
            for line in panel.lines
        }
        for panel in panels
    }
    pyplot.close("all")
    return result


EPOCHS: list[dict[str, Any]] = [
    {"epoch": 1, "step": 10, "time": 3600.0, "loss": 2.0, "accuracy": 0.25, "val_loss": 1.0},
    {"epoch": 2, "step": 20, "time": 7200.0, "loss": 1.0, "accuracy": 0.5, SPEED: 99.0},
    {"epoch": 3, "step": 30, "time": 9000.0, "loss": None, "accuracy": 0.5},
]


def test_the_curves_are_those_of_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another task may be writing its next line.
    write(tmp_path / "metrics.jsonl", *EPOCHS, end='{"epoch": 4, "lo')
    write(tmp_path / "eval_metrics.jsonl", {"epoch": 2, "time": 8100.0, "loss": 0.5})
    start, later = {"event": "start", "epoch": 0, "step": 0, "time": 1800.0}, 8000.0
    again = {"event": "start", "epoch": 1, "step": 15, "time": later}
    write(tmp_path / "events.jsonl", start, {**again, "event": "preempted"}, again)

    assert drawn(monkeypatch, tmp_path) == {
        "loss": {
            "training": [[1, 2], [2.0, 1.0]],
            "validation": [[1], [1.0]],
            "evaluator": [[2], [0.5]],
            "restart": [[1.5, 1.5], [0, 1]],
        },
        "accuracy": {
            "training": [[1, 2, 3], [0.25, 0.5, 0.5]],
            "restart": [[1.5, 1.5], [0, 1]],
        },
        SPEED: {"training": [[2], [99.0]], "restart": [[1.5, 1.5], [0, 1]]},
    }
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG)

    by_step = drawn(monkeypatch, tmp_path, axis="step", metrics=["loss"])
    assert list(by_step) == ["loss"]
    assert by_step["loss"]["evaluator"] == [[20], [0.5]], "the step of its epoch"
    assert by_step["loss"]["restart"][0] == [15, 15]
    by_time = drawn(monkeypatch, tmp_path, axis="time", metrics=["loss"])["loss"]
    assert by_time["training"][0] == [30, 90]
    assert by_time["restart"][0] == pytest.approx([6200 / 60] * 2)


def test_several_runs_are_drawn_over_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/run", "b/other", "b/run"):
        (tmp_path / name).mkdir(parents=True)
        write(tmp_path / name / "metrics.jsonl", *EPOCHS)
    different = drawn(monkeypatch, tmp_path / "a/run", tmp_path / "b/other", metrics=["accuracy"])
    assert set(different["accuracy"]) == {"run: training", "other: training"}
    same = drawn(monkeypatch, tmp_path / "a/run", tmp_path / "b/run", metrics=["accuracy"])
    assert set(same["accuracy"]) == {
        f"{tmp_path}/a/run: training",
        f"{tmp_path}/b/run: training",
    }


def test_an_estimator_has_an_evaluation_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "eval_metrics.jsonl", {"global_step": 7, "loss": 2.0})
    expected = {"loss": {"evaluator": [[7], [2.0]]}}
    assert drawn(monkeypatch, tmp_path, axis="step") == expected


def test_pictures_are_png_svg_or_pdf(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", *EPOCHS)
    assert cli.main(["plot", str(tmp_path), f"--output={tmp_path}/curves.svg"]) == 0
    assert "<svg" in (tmp_path / "curves.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "field", "accepted"),
    [
        (["--output=curves.gif"], "--output", "accepted: .png, .svg, .pdf"),
        (["--output=no/curves.png"], "--output", "a file that this process can write"),
        (["--metrics=los"], "--metrics", f"loss, accuracy, {SPEED}"),
    ],
)
def test_bad_arguments_are_usage_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    field: str,
    accepted: str,
) -> None:
    write(tmp_path / "metrics.jsonl", *EPOCHS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["plot", ".", *arguments])
    assert ended.value.code == 2
    error = capfd.readouterr().err
    assert f"tfdist: error: {field}: received" in error and accepted in error


def test_a_directory_without_metrics_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        curves.plot([tmp_path], tmp_path / "curves.png")
    error = raised.value
    assert (error.field, error.received) == ("OUTPUT_DIR", str(tmp_path))
    assert error.accepted == "a directory with metrics in metrics.jsonl"


def test_without_matplotlib_a_line_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "metrics.jsonl", {"epoch": 1, "loss": 2.0})
    monkeypatch.setitem(sys.modules, "matplotlib", None)

    assert not curves.plot([tmp_path], tmp_path / "curves.png")
    assert "pip install 'tfdist[plot]'" in capfd.readouterr().err
    assert not (tmp_path / "curves.png").exists()
