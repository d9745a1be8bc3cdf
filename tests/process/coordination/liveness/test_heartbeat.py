"""This process ends if a peer no longer answers, but not if a peer has exited."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tfdist.coordination.liveness import heartbeat
from tfdist.coordination.probe import Listener
from tfdist.errors import LostTaskError

pytestmark = pytest.mark.stacks("newest")


@pytest.mark.parametrize("no_answer", [Listener.SILENT, Listener.UNREACHABLE])
@pytest.mark.parametrize(
    "answer",
    [found for found in Listener if found not in (Listener.SILENT, Listener.UNREACHABLE)],
)
def test_a_task_is_lost_after_the_timeout_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, no_answer: Listener, answer: Listener
) -> None:
    now = 0.0
    ended: list[BaseException] = []
    # An answer every 25 seconds, and no answer after the second one.
    found = iter([*([no_answer] * 4 + [answer]) * 2, *[no_answer] * 100])

    def sleep(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
    monkeypatch.setattr(heartbeat, "identify", lambda _: next(found))
    heartbeat._watch({"ps:0": "10.0.0.3:2222"}, 30.0, ended.append, sleep, set())
    (error,) = ended
    assert isinstance(error, LostTaskError)
    assert str(error) == (
        "ps:0 was lost: nothing at 10.0.0.3:2222 has answered for 30 s (--heartbeat_timeout)"
    )
    assert now == 50.0 + 30.0


def test_the_process_that_watches_imports_nothing_from_the_current_directory(
    tmp_path: Path,
) -> None:
    """It exits because this process, its parent, has exited."""
    (tmp_path / "selectors.py").write_text("open('marker', 'w').close()\n")
    script = tmp_path / "script" / "train.py"
    script.parent.mkdir()
    script.write_text(
        "from tfdist.coordination.liveness.heartbeat import watch_in_subprocess\n"
        "watch_in_subprocess({}, 30.0)\n"
    )
    # The process that watches has the same output, so this waits for its end.
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout) == (0, "")
    assert not (tmp_path / "marker").exists()
