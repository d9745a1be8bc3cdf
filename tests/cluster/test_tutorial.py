"""The commands of the tutorial do what it says, in the order of the page."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks, readme_script
from tests.support.patience import PATIENCE
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(900)]


def words(command: str) -> list[str]:
    """The command, run by this Python."""
    program, *rest = shlex.split(command)
    return [sys.executable, *(["-m", "tfdist"] if program == "tfdist" else []), *rest]


def test_the_tutorial_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    page = ROOT / "docs" / "tutorial.md"
    commands = "".join(blocks(page, "sh")).splitlines()
    one, several, complete, plot, report, long, look, kill, ended, again = commands
    (tmp_path / "train.py").write_text(readme_script())

    def call(command: str, code: int = 0) -> str:
        done = subprocess.run(words(command), capture_output=True, text=True, timeout=300)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def wait_for_training(terminal: Terminal, loads: int) -> str:
        """What `tfdist status` prints when the tasks train, after a number of starts."""
        until = time.monotonic() + 60 * PATIENCE
        while True:
            terminal.read()
            # Between two starts of the chief, the command fails.
            shown = subprocess.run(words(look), capture_output=True, text=True, timeout=300)
            if terminal.text.count("resuming after") == loads and "training" in shown.stdout:
                return shown.stdout
            assert time.monotonic() < until, terminal.text

    assert re.search(r"^loss 0\.\d+, accuracy 0\.9\d+$", call(one), re.MULTILINE)
    assert "resuming after epoch 3 of 6" in call(several)
    assert call(complete).startswith("complete, at step 270; the model is in ")
    call(plot)
    call(report)
    assert {"curves.png", "report.html"} <= {file.name for file in tmp_path.iterdir()}
    with Terminal(words(long), rows=200) as terminal:
        shown = wait_for_training(terminal, loads=1)
        assert re.search(r"^epoch \d+ of 1000, step [\d,]+ of 30,090, loss 0\.", shown, re.M)
        pids = dict(re.findall(r"^(worker:\d) +\S+:(\d+) ", shown, re.MULTILINE))
        program, *arguments, _ = kill.split()
        subprocess.run([program, *arguments, pids["worker:1"]], check=True)
        assert wait_for_training(terminal, loads=2) != shown
        assert "worker:1 was killed by signal 9 (Killed)" in terminal.text
        os.killpg(terminal.process.pid, signal.SIGINT)  # Ctrl-C.
        assert terminal.wait(deadline=60) == 75, terminal.text
    outcome = call(ended, code=1)
    match = re.fullmatch(
        r"interrupted: saved at step ([\d,]+) of 30,090, .*; the same command resumes there\n",
        outcome,
    )
    assert match, outcome
    with Terminal(words(again)) as terminal:
        terminal.wait_for(f"and {match[1].replace(',', '')} steps in run1", deadline=60)
