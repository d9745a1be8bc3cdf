"""A job in its own network trains as usual, and others cannot connect to its tasks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.processes import (
    PROGRAM,
    Processes,
    Tasks,
    checkpoints,
    directories,
    results,
    run_by_hand,
    tasks_of,
)
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("2.15"), pytest.mark.timeout(200)]

# What every ps is.
SERVER = """
import sys
import tensorflow as tf

address = f"127.0.0.1:{sys.argv[1]}"
server = tf.distribute.Server({"ps": [address]}, job_name="ps", task_index=0)
print("ready", flush=True)
sys.stdin.read()
"""
# As a process of another user of the machine.
ATTACK = """
import os, sys
import tensorflow as tf

os.setuid(65534)
tf.compat.v1.disable_eager_execution()
with tf.compat.v1.Session(f"grpc://127.0.0.1:{sys.argv[1]}") as session:
    print(session.run(tf.io.read_file(sys.argv[2])).decode())
"""
JOBS = {
    "horovod": ["--workers=2"],
    "parameter_server": ["--ps=1", "--workers=1", "--chief"],
}


def command_of(path: Path, strategy: str, *flags: str, epochs: int = 3) -> list[str]:
    job = [f"--strategy={strategy}", *JOBS[strategy], *flags]
    training = [*directories(path), f"--epochs={epochs}", "--save_steps=2", "--rest=0.5"]
    return [sys.executable, "-m", "tfdist", "run", *job, PROGRAM, *training]


def listening(process: int) -> set[int]:
    """The ports on which something listens in the network of a process."""
    lines = Path(f"/proc/{process}/net/tcp6").read_text().splitlines()[1:]
    lines += Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    return {
        int(line.split()[1].rpartition(":")[2], 16) for line in lines if line.split()[3] == "0A"
    }


@pytest.mark.parametrize("strategy", JOBS)
def test_others_cannot_connect_to_an_isolated_job(strategy: str, tmp_path: Path) -> None:
    ports: set[int] = set()

    def look(processes: Processes, paths: Mapping[str, Path]) -> None:
        if checkpoints(tmp_path) and not ports:
            (task, *_) = tasks_of(processes["tfdist"].pid)
            ports.update(listening(task.pid))
            for port in ports:
                with socket.socket() as client:
                    assert client.connect_ex(("127.0.0.1", port)) != 0

    # With parameter servers, a job rests after epochs and not after steps.
    epochs = 10 if strategy == "parameter_server" else 3
    job: Tasks = {"tfdist": (command_of(tmp_path, strategy, "--isolate", epochs=epochs), {})}
    # In a process of its own, because the network is that of the process and its children.
    ended = run_by_hand(tmp_path, job, deadline=150, copies=False, watch=look)["tfdist"]
    assert ended.code == 0, ended.output
    assert "its own network (--isolate)" in ended.output
    assert ports
    assert results(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_without_isolation_another_user_reads_the_users_files(tmp_path: Path) -> None:
    """TensorFlow's servers do not authenticate clients: docs/security.md."""
    secret = tmp_path / "secret"
    secret.write_text("the user's file")
    secret.chmod(0o600)
    with hold_ports(1) as (port,):
        server = [sys.executable, "-c", SERVER, str(port)]
        with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            done = subprocess.run(
                [sys.executable, "-c", ATTACK, str(port), str(secret)],
                capture_output=True,
                text=True,
                timeout=120,
            )
            process.kill()
    assert done.stdout == "the user's file\n", done.stderr
