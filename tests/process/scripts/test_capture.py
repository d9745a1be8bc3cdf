"""`scripts/capture.py`: pictures of terminals for the documentation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


def test_a_picture_has_the_text_and_the_colors_and_asks_no_server(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    script = str(ROOT / "scripts" / "capture.py")
    printed = ["printf", "plain \\033[32mgreen\\033[0m\\n"]
    command = [sys.executable, script, "--rows=5", "--columns=40", str(picture), *printed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    text = picture.read_text()
    assert ">plain</text>" in text.replace("&#160;", "") and ">green</text>" in text
    assert "url(http" not in text
