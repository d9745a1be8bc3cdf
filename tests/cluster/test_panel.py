"""The panel of a real training: what the tasks say of their steps, epochs and losses."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import directories
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(240)]

# Of 20 steps with a batch of 32 per replica, in two epochs.
TRIAL = ["-m", "tfdist.tools.selftest.script"]


@pytest.mark.parametrize(
    ("strategy", "flags"),
    [
        ("multi_worker_mirrored", ["--workers=2"]),
        ("parameter_server", ["--workers=2", "--ps=1", "--chief"]),
    ],
)
def test_the_panel_and_the_summary_of_a_training(
    strategy: str, flags: list[str], tmp_path: Path
) -> None:
    (tmp_path / "result").mkdir()
    command = [sys.executable, "-m", "tfdist", "run", f"--strategy={strategy}", *flags, *TRIAL]
    with Terminal([*command, *directories(tmp_path)], columns=300) as terminal:
        assert terminal.wait(deadline=200) == 0, terminal.text
    rows = {line.split()[0]: line for line in terminal.text.splitlines() if line}
    chief = "chief:0" if "--chief" in flags else "worker:0"
    assert rows[chief].startswith(f"{chief} (chief)  done  "), rows
    lines = terminal.text.splitlines()
    # The bar is gone at the end. The training may end between two looks.
    assert re.search(rb"step \d+ of 20  epoch [12] of 2", terminal.raw)
    assert not any("epoch" in line for line in lines[-8:])
    result, speed, time, saved, failures = lines[-5:]
    assert result == "tfdist: result    complete"
    assert "; step 20, loss 0." in speed
    assert "ckpt-20, model " in saved
    assert failures == "tfdist: failures  none"
    assert time.startswith("tfdist: time      ")
