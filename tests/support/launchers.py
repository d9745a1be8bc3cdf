"""Starts `tfdist run` on small scripts, and checks that no process is left after the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from tests.support.patience import PATIENCE

ROOT = Path(__file__).parents[2]
MARK = "TFDIST_TEST_MARK"
DEADLINE = 30.0 * PATIENCE

# The first lines of the test scripts. `name` is the task's name; `wait_for` waits for a file. Each
# task opens its port, as a script that distributes does.
HEADER = """
import json, os, pathlib, signal, socket, subprocess, sys, time

config = json.loads(os.environ.get("TF_CONFIG", '{"task": {"type": "worker", "index": 0}}'))
task = config["task"]
name = f"{task['type']}:{task['index']}"
if task["type"] in config.get("cluster", {}):
    host, _, port = config["cluster"][task["type"]][task["index"]].rpartition(":")
    if host == "127.0.0.1":
        server = socket.create_server((host, int(port)))

def wait_for(path):
    while not pathlib.Path(path).exists():
        time.sleep(0.01)

def on_signal(action, *numbers):
    for number in numbers:
        signal.signal(number, action)
"""

Start = Callable[..., "subprocess.Popen[str]"]


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def marked(mark: str) -> list[psutil.Process]:
    """The live processes that were started with `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if is_alive(process) and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def outlive(
    processes: Sequence[psutil.Process], seconds: float = 5.0 * PATIENCE
) -> list[psutil.Process]:
    """Waits for processes to end; returns those that are still running after `seconds`."""
    deadline = time.monotonic() + seconds
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [process for process in processes if is_alive(process)]


def restore_signal_handlers() -> None:
    """Restores default handlers: a launcher keeps ignoring signals that the test runner ignores."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts launchers in `tmp_path`; fails if any of their processes is left after the test."""
    mark = uuid.uuid4().hex
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "TF_CONFIG") and not name.startswith("HOROVOD_")
    }
    environ |= {MARK: mark, "PYTHONPATH": str(ROOT)}
    started = []

    def run(
        command: Sequence[str],
        *,
        preexec_fn: Callable[[], None] = restore_signal_handlers,
        extra: dict[str, str] | None = None,
        stdout: int | IO[Any] = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**environ, **(extra or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=preexec_fn,
        )
        started.append(process)
        return process

    yield run

    left = outlive(marked(mark))
    for process in left:
        process.kill()
    for launcher in started:
        launcher.wait()
        for stream in (launcher.stdout, launcher.stderr):
            if stream is not None:
                stream.close()
    assert not left


@pytest.fixture
def tfdist_run(start: Start, tmp_path: Path) -> Start:
    """Starts `tfdist run` with a script's text and the command's flags."""

    def run(script: str, *flags: str, **options: Any) -> subprocess.Popen[str]:
        (tmp_path / "train.py").write_text(HEADER + textwrap.dedent(script))
        # These scripts do not need TensorFlow; test_forkserver.py tests the other start method.
        command = ["-m", "tfdist", "run", "--start_method=spawn", *flags, "train.py"]
        return start(command, **options)

    return run


def lines_until(launcher: subprocess.Popen[str], *expected: str) -> None:
    """Reads the launcher's output until it has printed each of these lines."""
    missing = set(expected)
    assert launcher.stdout is not None
    while missing:
        line = launcher.stdout.readline()
        assert line, f"the output ended without {missing}"
        missing.discard(line.rstrip("\n"))
