"""`scripts/pictures.py`: the pictures of the documentation, and what they show."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT

pytestmark = [
    pytest.mark.stacks("2.15"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium"),
]

_PNG = b"\x89PNG\r\n\x1a\n"


def test_the_pictures_are_made(tmp_path: Path) -> None:
    script = str(ROOT / "scripts" / "pictures.py")
    command = [sys.executable, script, f"--directory={tmp_path}", "--epochs=4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "panel.svg",
        "report.png",
        "tensorboard.png",
    ]
    panel = (tmp_path / "panel.svg").read_text()
    text = panel.replace("&#160;", " ")
    # The worker that was killed has started again, and the training goes on.
    assert re.search(r"worker:1 +serving +2 ", text)
    assert re.search(r"epoch \d of 4 ", text)
    assert "url(http" not in text, "a picture asks no server"
    for name in ("report.png", "tensorboard.png"):
        content = (tmp_path / name).read_bytes()
        assert content.startswith(_PNG)
        # An empty page has a tenth of this.
        assert len(content) > 60_000
