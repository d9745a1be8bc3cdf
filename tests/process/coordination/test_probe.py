"""A probe identifies what listens at an address: nothing, a task, or a completion notice."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.processes import ROOT
from tfdist.cluster import Cluster, Task
from tfdist.coordination import probe, shutdown, startup
from tfdist.coordination.probe import Listener
from tfdist.tools.launch.local import hold_ports

pytestmark = pytest.mark.stacks("newest")

# The first bytes from a gRPC server: an HTTP/2 SETTINGS frame.
SETTINGS = b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda connection: connection.sendall(SETTINGS), Listener.SERVER),
        # A busy server answers late.
        (lambda connection: connection.recv(1) and connection.sendall(SETTINGS), Listener.SERVER),
        # Without a proof: another program may be listening there.
        (lambda connection: connection.sendall(shutdown.COMPLETION_NOTICE), Listener.OTHER),
        (
            lambda connection: (
                connection.sendall(shutdown.COMPLETION_NOTICE),
                connection.recv(64),
                connection.recv(1),
            ),
            Listener.OTHER,
        ),
        (lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), Listener.OTHER),
        (lambda connection: connection.recv(1), Listener.BARRIER),
        (lambda connection: None, Listener.REFUSED),
        # A suspended process sends nothing; the probe closes the connection.
        (lambda connection: connection.recv(2) and connection.recv(1), Listener.SILENT),
    ],
)
def test_the_first_bytes_identify_the_listener(
    server: socket.socket, answer: Callable[[socket.socket], object], expected: Listener
) -> None:
    found: list[Listener] = []
    probing = threading.Thread(target=lambda: found.append(probe.identify(address(server))))
    probing.start()
    connection, _ = server.accept()
    with connection:
        answer(connection)
    probing.join()
    assert found == [expected]


def test_an_address_without_a_listener_is_identified() -> None:
    with hold_ports(1) as (port,):
        assert probe.identify(f"127.0.0.1:{port}") is Listener.REFUSED
    assert probe.identify("no-such-host.invalid:2222") is Listener.UNRESOLVED


def test_an_unreachable_machine_is_identified(monkeypatch: pytest.MonkeyPatch) -> None:
    def time_out(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", time_out)
    assert probe.identify("10.0.0.1:2222") is Listener.UNREACHABLE


def test_a_connection_to_itself_counts_as_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        connection.connect(connection.getsockname())
        monkeypatch.setattr(socket, "create_connection", lambda *_: connection)
        assert probe.identify("127.0.0.1:1") is Listener.REFUSED


@pytest.mark.parametrize("index", [0, 1])
def test_a_task_at_the_startup_barrier_is_identified(index: int) -> None:
    """Its peer never starts."""
    with hold_ports(2) as ports:
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        cluster, task = Cluster(worker=addresses), Task("worker", index)
        me = startup.Hello(cluster=cluster, task=task, strategy="horovod", versions={})
        config = startup.BarrierConfig(me, timeout=3.0)
        waiting = threading.Thread(target=startup.wait_at_barrier, args=(config,))
        waiting.start()
        found = Listener.REFUSED
        while waiting.is_alive() and found is Listener.REFUSED:
            found = probe.identify(addresses[index])
        waiting.join()
    assert found is Listener.BARRIER


def test_a_tensorflow_server_is_identified() -> None:
    code = """
        import tensorflow as tf
        from tfdist.coordination import probe
        server = tf.distribute.Server.create_local_server()
        print(probe.identify(server.target.removeprefix("grpc://")))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "Listener.SERVER\n"


def test_wait_for_server_returns_when_a_server_answers_or_at_the_timeout() -> None:
    with hold_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
        begin = time.monotonic()
        probe.wait_for_server(address, 0.2)
        assert time.monotonic() - begin >= 0.2
        waiting = threading.Thread(target=probe.wait_for_server, args=(address, 60.0))
        waiting.start()
        with socket.create_server(("127.0.0.1", port), reuse_port=True) as listening:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(SETTINGS)
                waiting.join(30.0)
    assert not waiting.is_alive()


def test_a_tensorflow_server_keeps_no_socket_of_a_probe() -> None:
    code = """
import os, sys, time
import tensorflow as tf
from tfdist.coordination import probe

address = sys.argv[1]
cluster = tf.train.ClusterSpec({"worker": [address]})
server = tf.distribute.Server(cluster, job_name="worker", task_index=0, protocol="grpc")
counts = []
for _ in range(3):  # The first round also creates the descriptors of the server's threads.
    found = {probe.identify(address) for _ in range(50)}
    time.sleep(0.5)
    counts.append(len(os.listdir("/proc/self/fd")))
print(found, counts[-1] - counts[-2])
"""
    with hold_ports(1) as (port,):
        done = subprocess.run(
            [sys.executable, "-c", code, f"127.0.0.1:{port}"],
            env={"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=110,
        )
    words = done.stdout.rsplit(maxsplit=1)
    assert words[0] == "{<Listener.SERVER: 6>}", done
    assert abs(int(words[1])) < 10
