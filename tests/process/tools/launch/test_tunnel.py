"""`tfdist exec --tls`: a task has connections to the tasks of its job alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.conftest import tf_config
from tests.support.processes import ROOT
from tests.support.tunnels import is_open_to_all, needs_tunnels
from tfdist.errors import EXIT_FAILED, EXIT_USAGE
from tfdist.tools.launch.local import hold_ports
from tfdist.tools.launch.tunnel.enter import listener_at

pytestmark = [
    pytest.mark.stacks("newest"),
    pytest.mark.timeout(120),
    needs_tunnels,
]

# Worker 1 sends much to worker 0 and gets the number of bytes back; then ACTION.
SCRIPT = """
import json, os, signal, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
addresses, index = config["cluster"]["worker"], config["task"]["index"]
host, port = addresses[0].split(":")
if index == 0:
    connection, (peer, _) = socket.create_server(("", int(port))).accept()
    received = 0
    while received < SIZE:
        received += len(connection.recv(1 << 20))
    connection.sendall(b"%d" % received)
    print(f"from {peer}", flush=True)
else:
    for _ in range(100):
        try:
            connection = socket.create_connection((host, int(port)), 20)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    connection.sendall(bytes(SIZE))
    print(f"sent {connection.recv(100).decode()}", flush=True)
ACTION
"""
SIZE = 20_000_000


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


class Pair:
    """Two tasks of a job on this machine.

    Args:
      started: where the processes are ended.
      path: a directory for the script.
      action: what the tasks do after their exchange.

    Attributes:
      addresses: those of the tasks.
      ports: their ports.
    """

    def __init__(self, started: ExitStack, path: Path, action: str) -> None:
        self._started = started
        self._script = path / "train.py"
        self._script.write_text(SCRIPT.replace("SIZE", str(SIZE)).replace("ACTION", action))
        with hold_ports(2) as ports:
            self.ports = ports
        self.addresses = [f"127.0.0.1:{port}" for port in ports]

    def start(self, index: int, token: str = "token", type: str = "worker") -> Task:
        config = tf_config(type, index, worker=self.addresses)
        process = subprocess.Popen(
            [sys.executable, "-m", "tfdist", "exec", "--tls", str(self._script)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TF_CONFIG": config,
                "TFDIST_JOB_TOKEN": token,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.callback(process.kill)
        return process


Task = subprocess.Popen[str]


def outcome(task: Task) -> tuple[int, str, str]:
    """Its exit code and what it has printed."""
    out, err = task.communicate(timeout=60)
    return task.returncode, out, err


def test_tasks_exchange_data_and_end_with_their_own_codes(
    started: ExitStack, tmp_path: Path
) -> None:
    pair = Pair(started, tmp_path, "sys.exit(10 + index)")
    tasks = [pair.start(0), pair.start(1)]
    tunnels = [each for task in tasks for each in psutil.Process(task.pid).children()]
    (code, out, err), (other_code, other_out, other_err) = map(outcome, tasks)
    assert (code, out) == (10, "from 198.18.0.2\n"), err
    assert (other_code, other_out) == (11, f"sent {SIZE}\n"), other_err
    assert "connections to the tasks of its job alone, over TLS (--tls)" in err
    psutil.wait_procs(tunnels, timeout=20)
    assert not any(each.is_running() for each in tunnels)


def test_a_task_that_starts_later_is_reached(started: ExitStack, tmp_path: Path) -> None:
    pair = Pair(started, tmp_path, "")
    later = pair.start(1)
    time.sleep(2.0)
    first = pair.start(0)
    assert outcome(first)[0] == 0
    assert outcome(later)[:2] == (0, f"sent {SIZE}\n")


def test_the_others_see_the_end_of_a_killed_task_which_is_started_again(
    started: ExitStack, tmp_path: Path
) -> None:
    action = "if index: time.sleep(60)\nelse: print('ended', connection.recv(1), flush=True)"
    pair = Pair(started, tmp_path, action)
    tasks = [pair.start(0), pair.start(1)]
    assert tasks[1].stdout is not None
    assert tasks[1].stdout.readline() == f"sent {SIZE}\n"
    tasks[1].send_signal(signal.SIGKILL)
    tasks[1].wait()
    again = pair.start(1)
    code, out, err = outcome(tasks[0])
    assert code == 0, err
    assert "ended b''" in out
    # Its port is free at once.
    assert again.stderr is not None
    assert "(TF_CONFIG)" in again.stderr.readline()
    assert "(--tls)" in again.stderr.readline()


def test_a_task_has_no_other_connections(started: ExitStack, tmp_path: Path) -> None:
    with hold_ports(1) as (port,):
        action = (
            f"print(socket.socket().connect_ex(('127.0.0.1', {port})) != 0,"
            " socket.if_nameindex(), flush=True)"
        )
        pair = Pair(started, tmp_path, action)
        tasks = [pair.start(0), pair.start(1)]
        for task in tasks:
            code, out, err = outcome(task)
            assert code == 0, err
            assert out.endswith("True [(1, 'lo'), (2, 'tls0')]\n")


def test_a_task_of_another_job_is_named(started: ExitStack, tmp_path: Path) -> None:
    pair = Pair(started, tmp_path, "")
    pair.start(0)
    other = pair.start(1, token="another")
    assert other.stderr is not None
    errors = [line for _, line in zip(range(3), other.stderr, strict=False)]
    assert f"no TLS connection to worker-0 at {pair.addresses[0]}: " in errors[-1]
    assert "certificate verify failed" in errors[-1]
    time.sleep(1.0)
    other.kill()
    # It is logged once.
    assert other.stderr.read() == ""


def test_a_port_in_use(started: ExitStack, tmp_path: Path) -> None:
    pair = Pair(started, tmp_path, "")
    with listener_at(0) as taken:
        port = taken.getsockname()[1]
        pair.addresses[0] = f"127.0.0.1:{port}"
        code, _, err = outcome(pair.start(0))
    assert code == EXIT_FAILED
    assert err.endswith(f"tfdist: error: port {port}: Address already in use\n")


@pytest.mark.parametrize(
    ("task", "token", "message"),
    [
        (("worker", 0), "", "TFDIST_JOB_TOKEN: received ''; accepted: with --tls, a random text"),
        (("evaluator", 0), "token", "--tls: received 'evaluator:0 of 2 worker (TF_CONFIG)'"),
    ],
)
def test_a_task_that_needs_no_tunnel_or_has_no_token(
    started: ExitStack, tmp_path: Path, task: tuple[str, int], token: str, message: str
) -> None:
    type, index = task
    code, _, err = outcome(Pair(started, tmp_path, "").start(index, token, type))
    assert code == EXIT_USAGE
    assert message in err
    assert "Traceback" not in err


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
@pytest.mark.skipif(is_open_to_all(), reason="every user may open /dev/net/tun here")
def test_a_user_who_may_not_open_the_device() -> None:
    config = tf_config("worker", 0, worker=["127.0.0.1:9001", "127.0.0.1:9002"])
    code = (
        "import os, sys; from tfdist.tools.commands.cli import main;"
        "import tfdist.tools.launch.tunnel.links;"
        "os.setgid(65534); os.setuid(65534);"
        # Otherwise the files of this process in /proc are root's: prctl(PR_SET_DUMPABLE).
        "import ctypes; ctypes.CDLL(None).prctl(4, 1);"
        "sys.exit(main(['exec', '--tls', '-m', 'this']))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TF_CONFIG": config,
            "TFDIST_JOB_TOKEN": "token",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == EXIT_USAGE, ended.stderr
    assert "--tls: received '/dev/net/tun'; accepted: where this user may open" in ended.stderr
    assert "Traceback" not in ended.stderr
