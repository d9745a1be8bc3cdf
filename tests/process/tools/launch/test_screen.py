"""The panel of `tfdist run` on a terminal, and the files of `--log_dir`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT
from tests.support.terminal import Terminal
from tfdist.tools.launch.screen import Screen

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(200)]

RUN = [sys.executable, "-m", "tfdist", "run"]
# Says what tasks of a training say, without TensorFlow. The argument is what worker 1 does at its
# first start.
SCRIPT = """
import json, os, pathlib, sys, time
from tfdist.coordination.liveness.activity import Activity

task = json.loads(os.environ["TF_CONFIG"])["task"]
record = Activity(f"{task['type']}:{task['index']}", "job")
record.describe(output=os.getcwd(), epoch=1, epochs=2, goal=60, examples_per_step=32.0)
marker = pathlib.Path("marker")
for step in range(1, 31):
    record.made(step)
    record.describe(loss=1 / step)
    if step % 10 == 0:
        print(f"step {step}", flush=True)
    time.sleep(0.1)
    if step == 30 and task["index"] == 0:
        pathlib.Path("saved_model", "saved_model.pb").touch()
    if step == 15 and task["index"] == 1 and not marker.exists():
        marker.touch()
        sys.exit(int(sys.argv[1]))
# The panel looks twice a second.
time.sleep(1.5)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A directory with the script and with what a training would leave there."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "saved_model").mkdir()
    for number in (9, 30):
        (tmp_path / "checkpoints" / f"ckpt-{number}.index").touch()
    return tmp_path


def run(job: Path, *arguments: str, columns: int = 120, kind: str = "xterm-256color") -> Terminal:
    environ = {"PYTHONPATH": str(ROOT), "TERM": kind}
    command = [*RUN, "--start_method=spawn", "--workers=2", *arguments]
    return Terminal(command, directory=job, environ=environ, columns=columns)


def test_the_panel_has_a_row_for_each_task_and_lines_above_it(job: Path) -> None:
    with run(job, "train.py", "0", columns=300) as terminal:
        terminal.wait_for("step 20", deadline=60)
        terminal.wait_for("examples/s ", deadline=60)
        terminal.wait_for(" left", deadline=60)  # The last line is drawn.
        lines = terminal.text.splitlines()
        header = next(line for line in lines if line.startswith("task "))
        assert header.split("  ")[0] == "task"
        assert header.split()[1:] == [
            *["does", "step", "examples/s", "loss", "last", "step", "starts", "CPU", "memory"]
        ]
        place = lines.index(header)
        assert "worker:0 (chief)  training" in lines[place + 1]
        assert lines[place + 2].startswith("worker:1 ")
        assert "of 60  epoch 1 of 2" in lines[place + 3] and " left" in lines[place + 3]
        assert "[worker:0] step 10" in lines[:place]
        assert terminal.wait(deadline=60) == 0
    lines = terminal.text.splitlines()
    assert sum(line.startswith("task ") for line in lines) == 1, terminal.text
    assert {"[worker:0] step 30", "[worker:1] step 10"} <= set(lines)
    assert any(line.startswith("worker:0 (chief)  done") for line in lines)
    summary = [line.removeprefix("tfdist: ") for line in lines[-5:]]
    assert summary[0] == "result    complete"
    assert summary[1].startswith("speed     ") and summary[1].endswith("step 30, loss 0.03333")
    assert "of it in training steps" in summary[2]
    checkpoint, model = job / "checkpoints" / "ckpt-30", job / "saved_model"
    assert summary[3] == f"saved     checkpoint {checkpoint}, model {model}"
    assert summary[4] == "failures  none"


def test_a_restart_and_a_failure_are_shown(job: Path) -> None:
    with run(job, "--max_restarts=1", "--restart_delay=0.1", "train.py", "3") as terminal:
        assert terminal.wait(deadline=100) == 0
    lines = terminal.text.splitlines()
    assert any("worker:1 failed with exit code 3, restart 1 of 1" in line for line in lines)
    (row,) = (line for line in lines if line.startswith("worker:1 "))
    assert row.split()[1:2] == ["done"] and row.split()[-1] == "2", row
    assert lines[-1] == "tfdist: failures  worker:1 failed with exit code 3"

    (job / "marker").unlink()
    with run(job, "train.py", "3") as terminal:
        assert terminal.wait(deadline=100) == 3
    assert "tfdist: result    failed with code 3" in terminal.text.splitlines()


def test_the_terminal_is_as_before_after_ctrl_c(job: Path) -> None:
    with run(job, "train.py", "0") as terminal:
        terminal.wait_for("step 10", deadline=60)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait(deadline=60) == 128 + signal.SIGINT
    assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l"), "the cursor"
    assert "tfdist: result    failed with code 130" in terminal.text.splitlines()


def test_a_narrow_terminal_leaves_columns_out(job: Path) -> None:
    with run(job, "train.py", "0", columns=72) as terminal:
        terminal.wait_for("examples/s ", deadline=60)
        assert terminal.wait(deadline=60) == 0
    (header,) = (line for line in terminal.text.splitlines() if line.startswith("task "))
    assert "step" in header and "memory" not in header


@pytest.mark.parametrize(("flags", "kind"), [(["--plain"], "xterm-256color"), ([], "dumb")])
def test_without_a_panel_there_are_lines_alone(job: Path, flags: list[str], kind: str) -> None:
    with run(job, *flags, "train.py", "0", kind=kind) as terminal:
        assert terminal.wait(deadline=60) == 0
    assert b"\x1b[?25l" not in terminal.raw, "a panel hides the cursor"
    assert "examples/s" not in terminal.text
    assert "[worker:0] step 30" in terminal.text


def test_each_task_has_a_file_with_its_whole_output(job: Path) -> None:
    logs = job / "new" / "logs"
    command = [*RUN, "--workers=2", "--max_restarts=1", "--restart_delay=0.1"]
    command += ["--start_method=spawn", f"--log_dir={logs}", "train.py", "3"]
    done = subprocess.run(
        command,
        cwd=job,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    whole = "".join(f"step {number}\n" for number in (10, 20, 30))
    assert (logs / "worker-1.log").read_text() == "step 10\n" + whole
    assert (logs / "worker-0.log").read_text().endswith(whole)

    (job / "file").touch()
    command[-3] = "--log_dir=file/logs"
    done = subprocess.run(command, cwd=job, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "error: --log_dir: received 'file/logs'; accepted: a directory" in done.stderr


@pytest.fixture
def tasks(job: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes of 16 tasks."""
    started = [
        subprocess.Popen(
            [sys.executable, "train.py", "0"],
            cwd=job,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TF_CONFIG": json.dumps({"task": {"type": "worker", "index": index}}),
            },
            stdout=subprocess.DEVNULL,
        )
        for index in range(16)
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_look_costs_less_than_fifteen_reads_of_a_file_per_task(
    tasks: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Screen()
    for index, process in enumerate(tasks):
        screen.started(f"worker:{index}", process.pid)
    time.sleep(1)
    look = seconds_of(screen.look)
    reads = seconds_of(lambda: [Path(f"/proc/{each.pid}/stat").read_bytes() for each in tasks])
    screen.finish(0)
    assert b"worker:15" in capfdbinary.readouterr().out
    assert look < 15 * reads, f"{1000 * look:.1f} ms every {Screen.seconds} s"


def seconds_of(function: Callable[[], Any]) -> float:
    """The least time of this process for a call: a busy machine adds to some of them."""

    def once() -> float:
        begun = time.process_time()
        function()
        return time.process_time() - begun

    return min(once() for _ in range(40))
