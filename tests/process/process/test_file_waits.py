"""Which file a thread waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.stuck_disk import stuck_file
from tfdist.process.file_waits import file_wait

pytestmark = pytest.mark.stacks("newest")

# In a process of its own, which may remain until the file system is gone.
PROGRAM = """
import os, sys, threading, time
from tfdist.process.file_waits import file_wait

def wait():
    ACTION

threading.Thread(target=wait, daemon=True).start()
time.sleep(0.5)
print(file_wait(), flush=True)
os._exit(0)
"""


def start(action: str, path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("ACTION", action), str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
@pytest.mark.parametrize(
    "action", ["open(sys.argv[1], 'rb').read()", "os.pread(os.open(sys.argv[1], 0), 8, 0)"]
)
def test_a_file_that_is_read(action: str, tmp_path: Path) -> None:
    with stuck_file(tmp_path) as file:
        process = start(action, file)
        assert process.stdout is not None
        assert process.stdout.readline() == f"reads {file}\n"
    process.wait(30)


def test_a_file_that_is_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert start("open(sys.argv[1])", pipe).communicate(timeout=30)[0] == f"opens {pipe}\n"


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    assert start("os.read(os.pipe()[0], 1)", tmp_path).communicate(timeout=30)[0] == "\n"


def test_no_thread_waits() -> None:
    assert file_wait() == ""
