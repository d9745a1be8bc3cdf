"""Packets reach the other tasks of a job, and strangers cannot send or read them."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import pytest

from tfdist.tools.launch.tunnel.certificates import contexts, name_of
from tfdist.tools.launch.tunnel.enter import listener_at
from tfdist.tools.launch.tunnel.links import Links, Peer

pytestmark = pytest.mark.stacks("newest")

NAMES = ("worker-0", "worker-1")
ADDRESSES = (bytes([198, 18, 0, 1]), bytes([198, 18, 0, 2]))
SECONDS = 20.0


class End(NamedTuple):
    """A task: what is written to `device` are its packets; it accepts connections at `port`."""

    device: socket.socket
    port: int


def packet(source: int, destination: int, content: bytes = b"content") -> bytes:
    """An IPv4 packet; what is not used here is zero."""
    length = 20 + len(content)
    header = bytes([0x45, 0]) + length.to_bytes(2) + bytes(8)
    return header + ADDRESSES[source] + ADDRESSES[destination] + content


@pytest.fixture
def ends() -> Iterator[list[End]]:
    """Two tasks of one job."""
    listeners = [listener_at(0) for _ in NAMES]
    ports = [listener.getsockname()[1] for listener in listeners]
    made: list[End] = []
    links: list[Links] = []
    for own in (0, 1):
        other = 1 - own
        peer = Peer(NAMES[other], "127.0.0.1", ports[other], ADDRESSES[other])
        # A packet is read as a whole, as from a device.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(SECONDS)
        made.append(End(ours, ports[own]))
        own_contexts = contexts("token", NAMES[own])
        address = ADDRESSES[own]
        peers = {peer.address: peer}
        links.append(Links(theirs.detach(), listeners[own], address, peers, own_contexts))
        links[own].start()
    yield made
    for end, own_links in zip(made, links, strict=True):
        own_links.stop_listening()
        end.device.close()


def connect(end: End, context: ssl.SSLContext, name: str = NAMES[0]) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", end.port), SECONDS)
    return context.wrap_socket(plain, server_hostname=name)


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side ends a connection without having sent anything."""
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_packets_arrive_whole_and_in_order(ends: list[End]) -> None:
    sent = [packet(0, 1, os.urandom(size)) for size in (0, 1, 1400, 60_000)]
    for each in sent:
        ends[0].device.send(each)
    assert [ends[1].device.recv(1 << 17) for _ in sent] == sent
    ends[1].device.send(packet(1, 0))
    assert ends[0].device.recv(1 << 17) == packet(1, 0)


def test_packets_of_ipv6_and_for_unknown_addresses_are_dropped(ends: list[End]) -> None:
    ends[0].device.send(packet(0, 0))
    ends[0].device.send(bytes([0x60]) + bytes(47))
    ends[0].device.send(packet(0, 1))
    assert ends[1].device.recv(1 << 17) == packet(0, 1)


def test_a_packet_waits_for_a_peer_that_starts_later() -> None:
    with listener_at(0) as free:
        port = free.getsockname()[1]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer = Peer(NAMES[1], "127.0.0.1", port, ADDRESSES[1])
    peers = {peer.address: peer}
    own = contexts("token", NAMES[0])
    Links(theirs.detach(), listener_at(0), ADDRESSES[0], peers, own).start()
    ours.send(packet(0, 1))
    time.sleep(0.5)
    with listener_at(port) as listener:
        listener.settimeout(SECONDS)
        plain, _ = listener.accept()
        server = contexts("token", NAMES[1]).accepting
        with server.wrap_socket(plain, server_side=True) as connection:
            assert name_of(connection) == NAMES[0]
            assert connection.recv(1 << 10) == packet(0, 1)
    ours.close()


@pytest.mark.parametrize("token", ["another", None])
def test_a_stranger_is_sent_nothing_and_its_packets_are_dropped(
    token: str | None, ends: list[End]
) -> None:
    """With a certificate of another job, or with none."""
    context = contexts(token or "token", NAMES[1]).connecting
    if token is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with connect(ends[0], context) as connection:
        with suppress(OSError):
            connection.sendall(packet(1, 0, b"from a stranger"))
        assert is_closed(connection)
    ends[1].device.send(packet(1, 0))
    assert ends[0].device.recv(1 << 17) == packet(1, 0)


def test_a_connection_without_tls_is_closed(ends: list[End]) -> None:
    with socket.create_connection(("127.0.0.1", ends[0].port), SECONDS) as connection:
        connection.sendall(packet(1, 0) * 100)
        # An alert of TLS is all that it gets, where the end of the connection is not faster.
        with suppress(ConnectionResetError):
            assert len(connection.recv(100)) <= 7


@pytest.mark.parametrize(
    "forged",
    [
        packet(0, 0),
        packet(1, 1),
        bytes([0x60]) + packet(1, 0)[1:],
        packet(1, 0)[:2] + bytes(2) + packet(1, 0)[4:],
    ],
    ids=["source", "destination", "version", "length"],
)
def test_a_task_can_send_only_packets_of_its_own(forged: bytes, ends: list[End]) -> None:
    with connect(ends[0], contexts("token", NAMES[1]).connecting) as connection:
        connection.sendall(packet(1, 0) + forged + packet(1, 0, b"later"))
        assert is_closed(connection)
    assert ends[0].device.recv(1 << 17) == packet(1, 0)
    ends[0].device.settimeout(0.2)
    with pytest.raises(TimeoutError):
        ends[0].device.recv(1 << 17)


def test_no_peer_answers_to_the_name_of_another(ends: list[End]) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(ends[0], contexts("token", NAMES[1]).connecting, name="worker-7")


def test_older_versions_of_tls_are_refused(ends: list[End]) -> None:
    context = contexts("token", NAMES[1]).connecting
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):
        connect(ends[0], context)
