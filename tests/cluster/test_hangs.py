"""A task that hangs in its own Python code: the job ends with a report that names the place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes import Processes, launch, run_by_hand, start, states_of, tasks_of
from tests.support.stuck_disk import stuck_file
from tfdist.coordination.liveness.activity import State
from tfdist.coordination.liveness.hang_report import finding

pytestmark = [
    pytest.mark.stacks("newest", horovod=("newest",)),
    pytest.mark.timeout(200),
]

PROGRAM = str(Path(__file__).parents[1] / "support" / "hang_program.py")


@pytest.mark.parametrize(
    ("options", "hang", "shard", "place"),
    [
        ("--workers=2 --strategy=multi_worker_mirrored", "callback", 1, "sleep_in_callback"),
        ("--workers=2 --strategy=horovod", "callback", 1, "sleep_in_callback"),
        ("--ps=1 --workers=2", "py_function", 1, "sleep_in_function"),
        ("--ps=1 --workers=2 --sync", "py_function", 1, "sleep_in_function"),
        ("--workers=2 --strategy=in_graph", "callback", 0, "sleep_in_callback"),
    ],
)
def test_a_task_that_hangs_is_named_with_the_place(
    tmp_path: Path, options: str, hang: str, shard: int, place: str
) -> None:
    ended = launch(
        tmp_path / "logs",
        *options.split(),
        PROGRAM,
        f"--hang={hang}",
        f"--shard={shard}",
        f"--output_dir={tmp_path / 'output'}",
        "--step_timeout=8",
        deadline=180,
    )
    assert ended.code == 1, ended.output
    (line,) = set(re.findall(r"tfdist: error: (.*)", ended.output))
    assert re.fullmatch(
        rf"no step for \d+ s \(--step_timeout\): worker:\d is in hang_program.py:\d+ in {place}\. "
        r"The Python stacks of all tasks are in \S+/output/hang_report\.txt",
        line,
    ), line
    text = (tmp_path / "output" / "hang_report.txt").read_text()
    for task in ("worker:0", "worker:1", *["ps:0"] * ("--ps" in options)):
        assert f"\n{task}: Python stacks\n" in text
    assert re.search(r"^worker:\d .* training .* s +\d+ +\d+ s ago", text, re.MULTILINE)
    assert f"in {place}\n    time.sleep(1000)\n" in text
    assert "s ago  step " in text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")
def test_a_file_system_that_hangs_is_named_and_its_task_is_left(tmp_path: Path) -> None:
    """Its thread waits in the kernel, which cannot end the process."""
    disk, output, log = tmp_path / "disk", tmp_path / "output", tmp_path / "log"
    disk.mkdir()
    culprit = "worker:1"
    command = [sys.executable, "-m", "tfdist", "run", "--workers=2"]
    command += ["--strategy=multi_worker_mirrored", "--grace_period=1"]
    command += [PROGRAM, "--hang=read", "--shard=1", "--step_timeout=8"]
    with stuck_file(disk) as file, log.open("w") as printed:
        command += [f"--file={file}", f"--output_dir={output}"]
        # What is left holds the output open.
        code = start(command, {}, printed).wait(150)
    text = log.read_text()
    assert code == 1, text
    assert f"(--step_timeout): {culprit} reads {file}. The Python stacks" in text
    assert re.search(
        rf"^tfdist: the kernel cannot end {culprit} \(process \d+\): it waits for a disk",
        text,
        re.M,
    )
    assert finding((output / "hang_report.txt").read_text()) == f"{culprit} reads {file}"


def test_a_running_job_shows_its_state_and_its_stacks(tmp_path: Path) -> None:
    """From another terminal, by the output directory and by the launcher's process."""
    shown: dict[str, subprocess.CompletedProcess[str]] = {}
    output = tmp_path / "output"

    def tfdist(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tfdist", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def look(processes: Processes, _: Mapping[str, Path]) -> None:
        launcher = processes["tfdist"].pid
        if "stacks" in shown:
            return
        (state,) = states_of(output) or [State()]
        if state.steps > 20:
            shown["status"] = tfdist("status", str(output))
            shown["by process"] = tfdist("status", str(launcher))
            shown["stacks"] = tfdist("stacks", str(output))
            for task in tasks_of(launcher):
                task.kill()

    arguments = ["--ps=1", "--workers=2", PROGRAM, "--hang=py_function", f"--output_dir={output}"]
    command = [sys.executable, "-m", "tfdist", "run", *arguments]
    run_by_hand(tmp_path / "logs", {"tfdist": (command, {})}, deadline=150, watch=look)
    assert [each.returncode for each in shown.values()] == [0, 0, 0]
    table, _, progress = shown["status"].stdout.partition("\n\n")
    header, *rows = table.splitlines()
    assert header.split() == ["task", "process", "does", "for", "steps", "last", "step"]
    assert [row.split()[0] for row in rows] == ["ps:0", "worker:0", "worker:1"]
    assert re.search(r"worker:0 .* training .* \d+ s ago", shown["status"].stdout)
    by_process = shown["by process"].stdout.partition("\n\n")[0].splitlines()
    assert [row.split()[:3] for row in by_process[1:]] == [row.split()[:3] for row in rows]
    assert re.match(r"epoch 1( of \d+)?, step \d+", progress), progress
    stacks = shown["stacks"].stdout
    assert stacks.count(", process ") == 3
    assert stacks.count("in serve_until_end") == 2 and "in sleep_in_function" in stacks


def test_without_a_job_the_commands_say_so(tmp_path: Path) -> None:
    for command in ("status", "stacks"):
        for job, code, message in (
            (str(tmp_path), 1, f"tfdist: no task of {tmp_path} runs of this user"),
            (str(tmp_path / "missing"), 2, "tfdist: error: OUTPUT_DIR|PID: received "),
            (str(tmp_path / ("x" * 300)), 2, "tfdist: error: OUTPUT_DIR|PID: received "),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "tfdist", command, job],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert (done.returncode, done.stdout) == (code, "")
            assert done.stderr.startswith(message) and done.stderr.count("\n") == 1
