"""A type of task that a package adds: one row and one module; nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import ROOT
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(240)]

SCRIPT = """
import socket
import time
import tfdist
from tfdist.cluster import host_and_port

def ask(address):
    while True:
        try:
            with socket.create_connection(host_and_port(address)) as connection:
                connection.sendall(b"hello\\n")
                return connection.makefile().readline().strip()
        except ConnectionRefusedError:
            time.sleep(0.1)  # It starts to listen after the barrier.

@tfdist.main
def main(job):
    print("echo:", ask(job.cluster.of("echo")[0]), flush=True)
    time.sleep(3)

if __name__ == "__main__":
    tfdist.run(main)
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script, where a package with the type `echo` is installed."""
    information = tmp_path / "echoes-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: echoes\nVersion: 1\n")
    (information / "entry_points.txt").write_text(
        "[tfdist.task_types]\necho = tests.support.echo_type:ROW\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def tfdist(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tfdist", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_starts_it_and_ends_it(workers: int, script: str) -> None:
    command = [sys.executable, "-m", "tfdist", "run", f"--workers={workers}", "--echo=1", script]
    with Terminal(command, columns=200) as terminal:
        assert terminal.wait(deadline=200) == 0, terminal.text
    assert terminal.text.count("echo: HELLO") == workers
    # It has been at the barrier, as all others, and ends when the chief has.
    assert f"echo:0 of {workers} worker + 1 echo (tfdist run)" in terminal.text
    assert "echo:0 exits because worker:0 has exited" in terminal.text
    rows = {line.split()[0]: line for line in terminal.text.splitlines() if line}
    assert rows["echo:0"].split()[:2] == ["echo:0", "done"], terminal.text


def test_it_is_planned_and_rendered_as_the_others_are(script: str) -> None:
    printed = tfdist("run", "--dry_run", "--echo=2", script).stdout
    assert '"task": {"index": 1, "type": "echo"}' in printed
    (line,) = (line for line in printed.splitlines() if line.startswith("[echo:1]"))
    assert "CUDA_VISIBLE_DEVICES=-1" in line
    assert "--ntasks=2" in tfdist("render", "slurm", "--echo=2", script).stdout
    assert "--num_echo=2" in tfdist("render", "mpirun", "--echo=2", script).stdout
    jobset = tfdist("render", "jobset", "--image=i", "--name=j", "--echo=2", script).stdout
    assert '"value": "echo=2,chief=1,worker=1"' in jobset
    hosts = tfdist("render", "hosts", "--worker_hosts=a:1", "--echo_hosts=b:2", script).stdout
    assert "# echo:0, on b" in hosts
    refused = tfdist("render", "tfjob", "--image=i", "--name=j", "--echo=2", script)
    assert refused.stderr.startswith("tfdist: error: --echo: received 'echo'; accepted: chief, ")
