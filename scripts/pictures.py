#!/usr/bin/env python
"""Makes the pictures of the documentation: a training, and other programs that look at it.

    scripts/pictures.py                    # into docs/
    scripts/pictures.py --directory=/tmp/pictures --epochs=8

A job of five tasks trains on digits and loses a worker. While it trains, its terminal is drawn, and
TensorBoard shows its directory, as it would on another machine. After it, a browser opens its
report. Needs chromium, TensorBoard and the extras `digits` and `plot`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.terminal_svg import svg  # noqa: E402
from tests.support.terminal import Terminal  # noqa: E402
from tfdist.coordination.liveness import activity  # noqa: E402

_TFDIST = (sys.executable, "-m", "tfdist")
_JOB = ("--strategy=parameter_server", "--ps=1", "--workers=2", "--chief", "--evaluator")
_MODEL = (
    *("--num_layers=8", "--train_batch_size=64", "--batch_norm_decay=0.9"),
    "--nouse_flip_for_training",
)
_COLUMNS, _ROWS = 112, 22
_DEADLINE = 300.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--directory", type=Path, default=ROOT / "docs")
    parser.add_argument("--epochs", type=int, default=24)
    options = parser.parse_args(arguments)
    options.directory.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as path:
        work = Path(path)
        output = work / "run1"
        _call(work, "data", "cifar10", "--data_dir=data", "--source=digits")
        script = [str(ROOT / "examples" / "cifar10_main.py"), *_MODEL, "--data_dir=data"]
        script += ["--output_dir=run1", f"--train_epochs={options.epochs}"]
        command = [*_TFDIST, "run", *_JOB, "--max_restarts=3", *script]
        with Terminal(command, rows=_ROWS, columns=_COLUMNS, directory=work) as terminal:
            _show_until(terminal, lambda: _epoch_of(output) > options.epochs // 3)
            _kill_worker(terminal.process.pid)
            # The lines about the lost worker have not left the screen yet.
            _show_until(terminal, lambda: _epoch_of(output) > options.epochs // 3 + 2)
            picture = svg(terminal.styled(), _COLUMNS, "tfdist run")
            (options.directory / "panel.svg").write_text(picture)
            _tensorboard(output / "logs", options.directory / "tensorboard.png")
            terminal.wait(deadline=_DEADLINE)
        _call(work, "report", "run1", "--output=report.html")
        report = work / "report.html"
        _browse(report.as_uri(), options.directory / "report.png", width=1000, height=1400)
    return 0


def _call(directory: Path, *words: str) -> None:
    subprocess.run([*_TFDIST, *words], cwd=directory, check=True)


def _epoch_of(output: Path) -> int:
    """The epoch that the chief trains."""
    states = [record.state for record in activity.tasks_of_this_machine()]
    return max((state.epoch for state in states if state.output == str(output)), default=0)


def _show_until(terminal: Terminal, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _DEADLINE
    while not condition():
        if not terminal.read() or time.monotonic() > until:
            raise SystemExit(f"The training has ended too early:\n{terminal.text}")
    # The panel is drawn twice a second.
    seen = time.monotonic() + 2.0
    while time.monotonic() < seen:
        terminal.read()


def _kill_worker(launcher: int) -> None:
    tasks = {process.pid for process in psutil.Process(launcher).children(recursive=True)}
    for record in activity.tasks_of_this_machine():
        if record.state.task == "worker:1" and record.state.pid in tasks:
            os.kill(record.state.pid, signal.SIGKILL)


def _tensorboard(logs: Path, picture: Path) -> None:
    """A picture of TensorBoard, which knows nothing but the directory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logs}", f"--port={port}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        # Lines need WebGL otherwise.
        page = f"http://127.0.0.1:{port}/?forceSVG=true&tagFilter=epoch_(loss|sec)#timeseries"
        _browse(page, picture, width=1300, height=900)
    finally:
        server.terminate()
        server.wait()


def _wait_for(port: int) -> None:
    until = time.monotonic() + _DEADLINE
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise SystemExit("TensorBoard has not started.")


def _browse(page: str, picture: Path, *, width: int, height: int) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("Install chromium.")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={width},{height}", "--virtual-time-budget=120000"]
    command += [f"--screenshot={picture}", page]
    for _ in range(3):
        # On a busy machine it may end without a picture.
        subprocess.run(command, check=True, timeout=_DEADLINE, capture_output=True)
        if picture.exists():
            return
    raise SystemExit(f"Chromium has made no picture of {page}.")


if __name__ == "__main__":
    sys.exit(main())
