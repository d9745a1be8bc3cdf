"""Tasks that do not do the same: every task ends at once, and one sentence names the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import launch

pytestmark = [pytest.mark.stacks("2.15", "2.21", horovod=("2.15",)), pytest.mark.timeout(200)]

PROGRAM = str(Path(__file__).parents[1] / "support" / "disagreement_program.py")
# The end of one task without an error is no loss of a task.
ENDED = "worker:1 ended early: its script ended"


@pytest.mark.parametrize(
    ("strategy", "fault", "sentence"),
    [
        (
            "multi_worker_mirrored",
            "model",
            "kernel is not the same in all tasks: float32 of shape (2, 4) in worker:0, float32 of "
            "shape (2, 5) in worker:1. Start the same script",
        ),
        (
            "multi_worker_mirrored",
            "directory",
            "process is not named in lock.json in worker:1. Pass the same output directory",
        ),
        ("multi_worker_mirrored", "exit", f"{ENDED} within fit"),
        ("horovod", "model", "of shape (2, 4) in worker:0, float32 of shape (2, 5) in worker:1."),
        ("horovod", "no fit", f"{ENDED} after starting"),
    ],
)
def test_one_sentence_names_the_difference(
    strategy: str, fault: str, sentence: str, tmp_path: Path
) -> None:
    flags = [f"--strategy={strategy}", "--workers=2"]
    arguments = [PROGRAM, f"--output_dir={tmp_path / 'output'}", f"--fault={fault}"]
    ended = launch(tmp_path / "log", *flags, *arguments, deadline=150)
    assert ended.code == 2, ended.output
    assert sentence in ended.output
    assert "Traceback" not in ended.output
    assert "was lost" not in ended.output
