"""Tasks that are stopped and do not answer, told from those that are gone."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdist.coordination import heartbeat
from tfdist.errors import LostTaskError
from tfdist.launch.local import hold_ports

ROOT = Path(__file__).parents[3]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_one_that_accepts_and_says_nothing_is_silent(listener: socket.socket) -> None:
    assert heartbeat.is_silent(address(listener), seconds=0.1)


@pytest.mark.parametrize("last_words", [b"x", b""])
def test_one_that_speaks_or_hangs_up_is_not(listener: socket.socket, last_words: bytes) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(last_words)

    thread = threading.Thread(target=answer)
    thread.start()
    assert not heartbeat.is_silent(address(listener), seconds=10)
    thread.join()


def test_a_task_that_waits_for_others_in_its_meeting_is_not() -> None:
    with hold_ports(2) as ports:
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        check = [sys.executable, "-m", "tfdist", "check", f"--worker_hosts={hosts}"]
        process = subprocess.Popen(
            [*check, "--job_name=worker", "--task_index=0"], cwd=ROOT, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        with process, process.stderr:
            # It says whom it waits for when it listens.
            assert b"waits for worker:1" in process.stderr.readline()
            assert not heartbeat.is_silent(f"127.0.0.1:{ports[0]}")
            process.kill()


def test_one_that_is_gone_is_not() -> None:
    with hold_ports(1) as (port,):
        assert not heartbeat.is_silent(f"127.0.0.1:{port}", seconds=10)
    assert not heartbeat.is_silent("no-such-host.invalid:2222", seconds=10)


def test_tensorflow_s_server_speaks_first() -> None:
    """Else every server would count as silent."""
    code = """
        import tensorflow as tf
        from tfdist.coordination import heartbeat
        server = tf.distribute.Server.create_local_server()
        print("silent:", heartbeat.is_silent(server.target.removeprefix("grpc://")))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "silent: False\n"


def test_silence_counts_when_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    ended: list[BaseException] = []
    # A sign of life every 25 seconds, and none after the last.
    silent_until = iter([True] * 4 + [False] + [True] * 4 + [False] + [True] * 100)

    def sleep(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now)
    heartbeat._watch(
        {"ps:0": "10.0.0.3:2222"}, 30.0, ended.append, lambda _: next(silent_until), sleep
    )
    (error,) = ended
    assert isinstance(error, LostTaskError)
    assert str(error) == (
        "ps:0 was lost: at 10.0.0.3:2222 nothing has answered for 30 s (--heartbeat_timeout)"
    )
    assert now == 50.0 + 30.0
