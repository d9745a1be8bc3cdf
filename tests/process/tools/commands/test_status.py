"""`tfdist status` of a job that does not run: of trainings that were complete, saved or killed."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tfdist.storage import lock
from tfdist.storage.checkpointer import mark_done
from tfdist.storage.output_directory import OutputDirectory
from tfdist.tools.commands.cli import main
from tfdist.training.records import events

pytestmark = pytest.mark.stacks("2.15")

TIME = r"\d{4}-\d\d-\d\d [\d:]+ [+-]\d{4}"
RESUMES = "; the same command resumes there\n"


@pytest.fixture
def output(tmp_path: Path) -> OutputDirectory:
    """The directory of a training of 360 steps that has begun, in another process."""
    output = OutputDirectory(tmp_path / "run1")
    output.checkpoints.mkdir(parents=True)
    holder = {"host": socket.gethostname(), "pid": 4711, "started": "2026-01-02 03:04:05+00:00"}
    output.lock.write_text(json.dumps(holder) + "\n")
    events.add(output, events.START, epoch=0, step=0, goal=360)
    return output


def checkpoint(output: OutputDirectory, name: str) -> None:
    (output.path / f"{name}.index").write_bytes(b"")
    (output.path / f"{name}.data-00000-of-00001").write_bytes(b"")


def status(output: OutputDirectory, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["status", str(output.path)])
    shown = capsys.readouterr()
    chief = f"process 4711 on {socket.gethostname()}, started 2026-01-02"
    assert f"its last chief was {chief}" in shown.err
    return code, shown.out


def test_a_complete_training(output: OutputDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(output, "checkpoints/ckpt-360")
    mark_done(output, finished=3, epochs=3)
    events.add(output, events.COMPLETE, epoch=3, step=360)
    assert status(output, capsys) == (0, "complete, at step 360\n")
    output.saved_model.mkdir()
    model = f"; the model is in {output.saved_model}"
    assert status(output, capsys) == (0, f"complete, at step 360{model}\n")


def test_an_interrupted_training(
    output: OutputDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(output, "checkpoints/ckpt-9")
    checkpoint(output, "checkpoints/ckpt-57")
    events.add(output, events.PREEMPTED, epoch=0, step=57)
    code, shown = status(output, capsys)
    assert code == 1
    assert re.fullmatch(f"interrupted: saved at step 57 of 360, {TIME}{RESUMES}", shown)


def test_an_estimator_that_was_killed(
    output: OutputDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = status(output, capsys)
    assert (code, shown.partition(";")[0]) == (1, "failed or killed before the first checkpoint")
    checkpoint(output, "model.ckpt-57")
    output.events.unlink()
    events.add(output, events.START, step=0, goal=0)
    code, shown = status(output, capsys)
    assert code == 1
    assert re.fullmatch(f"failed or killed: saved at step 57, {TIME}{RESUMES}", shown)


def test_a_training_whose_chief_is_elsewhere(
    output: OutputDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint(output, "checkpoints/ckpt-57")
    with output.lock.open("r+") as file:
        assert lock._try_to_lock(file.fileno(), output.lock)
        code, shown = status(output, capsys)
    assert (code, shown) == (0, "the job runs, but its chief not for this user on this machine\n")
