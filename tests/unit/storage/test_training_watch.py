"""An evaluator does not wait forever for a chief."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.errors import OutputError
from tfdist.storage import lock
from tfdist.storage.output_directory import OutputDirectory
from tfdist.storage.training_watch import TrainingWatch

pytestmark = pytest.mark.stacks("newest")


def wait(watch: TrainingWatch, seconds: int) -> None:
    for _ in range(seconds):
        watch.wait()


def test_a_chief_that_never_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = TrainingWatch(OutputDirectory(tmp_path), 60.0, lambda _: None)
    wait(watch, 59)
    assert capsys.readouterr().err == (
        "tfdist: the evaluator waits for the chief: no training runs in "
        f"{tmp_path}; it gives up in 30 s\n"
    )
    with pytest.raises(OutputError, match=r"the chief has not started, .* \(--startup_timeout\)"):
        wait(watch, 1)


def test_a_chief_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = True
    monkeypatch.setattr(lock, "is_held", lambda _: held)
    watch = TrainingWatch(OutputDirectory(tmp_path), 60.0, lambda _: None)
    wait(watch, 1000)
    held = False
    wait(watch, 59)
    # It has restarted.
    held = True
    wait(watch, 1)
    held = False
    wait(watch, 59)
    with pytest.raises(OutputError, match="the chief has ended before it was complete"):
        wait(watch, 1)


def test_without_locks_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "is_held", lambda _: None)
    wait(TrainingWatch(OutputDirectory(tmp_path), 60.0, lambda _: None), 1000)
