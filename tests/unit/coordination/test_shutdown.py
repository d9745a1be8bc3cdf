"""Who is heard at the address of a leader: nobody, a task, or that the training is complete."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.coordination import shutdown, startup
from tfdist.coordination.shutdown import Listener
from tfdist.launch.local import hold_ports

# What gRPC says first: a frame of HTTP/2's settings.
SETTINGS = b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"


def test_a_farewell() -> None:
    with hold_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
        assert shutdown.listener(address) is Listener.NOBODY
        saying = threading.Thread(target=shutdown.announce_completion, args=(address, 1.0))
        saying.start()
        heard = Listener.NOBODY
        while saying.is_alive() and heard is Listener.NOBODY:
            heard = shutdown.listener(address)
        assert heard is Listener.FAREWELL
        saying.join()
        assert shutdown.listener(address) is Listener.NOBODY


def test_a_meeting() -> None:
    """Of a task whose other one never comes."""
    with hold_ports(2) as ports:
        addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        party = startup.BarrierConfig(
            cluster=Cluster(worker=addresses),
            task=Task("worker", 0),
            strategy="horovod",
            timeout=3.0,
            versions={},
        )
        outcomes: list[startup.Outcome] = []
        meeting = threading.Thread(
            target=lambda: outcomes.append(startup.wait_at_barrier(party, say=lambda _: None))
        )
        meeting.start()
        heard = Listener.NOBODY
        while meeting.is_alive() and heard is Listener.NOBODY:
            heard = shutdown.listener(addresses[0])
        meeting.join()
    assert heard is Listener.MEETING
    assert "worker:1 has not started" in outcomes[0].verdict


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda connection: connection.sendall(SETTINGS), Listener.SERVER),
        # One that is busy speaks late.
        (lambda connection: connection.recv(1) and connection.sendall(SETTINGS), Listener.SERVER),
        # One that is stopped says nothing at all.
        (lambda connection: connection.recv(2) and connection.recv(1), Listener.SILENT),
        (lambda connection: None, Listener.SILENT),
    ],
)
def test_who_says_something_else_or_nothing_is_up(
    answer: Callable[[socket.socket], object], expected: Listener
) -> None:
    heard: list[Listener] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        asking = threading.Thread(target=lambda: heard.append(shutdown.listener(address)))
        asking.start()
        connection, _ = server.accept()
        with connection:
            answer(connection)
        asking.join()
    assert heard == [expected]
    assert expected in shutdown.UP


def test_a_port_that_is_connected_with_itself_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        connection.connect(connection.getsockname())
        monkeypatch.setattr(socket, "create_connection", lambda *_, **__: connection)
        assert shutdown.listener("127.0.0.1:1") is Listener.NOBODY


def test_a_server_is_waited_for() -> None:
    with hold_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
        begin = time.monotonic()
        shutdown.wait_for_server(address, 0.2)
        assert time.monotonic() - begin >= 0.2
        waiting = threading.Thread(target=shutdown.wait_for_server, args=(address, 60.0))
        waiting.start()
        with socket.create_server(("127.0.0.1", port), reuse_port=True) as server:
            connection, _ = server.accept()
            with connection:
                connection.sendall(SETTINGS)
                waiting.join(30.0)
    assert not waiting.is_alive()


def test_whoever_hangs_up_is_seen_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        waiting = threading.Thread(target=shutdown.wait_for_hang_up, args=(address, 60.0))
        waiting.start()
        connection, _ = server.accept()
        with connection:
            connection.sendall(SETTINGS)
            waiting.join(0.2)
            assert waiting.is_alive()
    waiting.join(30.0)
    assert not waiting.is_alive()


def test_whoever_stays_is_waited_for_so_many_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        begin = time.monotonic()
        shutdown.wait_for_hang_up(f"127.0.0.1:{server.getsockname()[1]}", 0.2)
        assert time.monotonic() - begin >= 0.2
