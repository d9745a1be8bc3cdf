"""Carries the packets of a task's network to the other tasks, over mutual TLS.

    links = Links(device, listener, address, peers, contexts)
    links.start()

A task connects to each task that it sends packets to. Such a connection carries IPv4 packets
(RFC 791) one after the other, in one direction. The header of a packet has its length.
"""

from __future__ import annotations

import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Semaphore
from typing import BinaryIO, cast

from tfdist.errors import log
from tfdist.tools.launch.tunnel.certificates import Contexts, name_of
from tfdist.tools.launch.tunnel.device import MTU

_HEADER_BYTES = 20
_VERSION = 4
_BUFFER_BYTES = 1 << 18
# Packets that wait for a connection. Further ones are dropped; TCP sends them again.
_MAX_PACKETS = 256
_RETRY_SECONDS = 0.2
# The timeout of a connection, of a handshake, and of data that the peer does not acknowledge.
_TIMEOUT_SECONDS = 20.0
# Handshakes at the same time; those of strangers count.
_MAX_HANDSHAKES = 64


@dataclass(frozen=True)
class Peer:
    """Another task: its name, where it accepts connections, and its address in the tunnel."""

    name: str
    host: str
    port: int
    address: bytes


@dataclass
class Links:
    """The connections of one task.

    Attributes:
      device: the file descriptor of the task's network device.
      listener: accepts the connections of the others.
      address: the task's address in the tunnel.
      peers: the other tasks, by their addresses.
      contexts: how connections are authenticated.
      last_packet: when a packet was last carried, in seconds of `time.monotonic`.
    """

    device: int
    listener: socket.socket
    address: bytes
    peers: Mapping[bytes, Peer]
    contexts: Contexts
    last_packet: float = field(default_factory=time.monotonic)
    _handshakes: Semaphore = field(default_factory=partial(Semaphore, _MAX_HANDSHAKES))

    def start(self) -> None:
        """Starts the threads, which end with the process."""
        for work in (self._send, self._accept):
            threading.Thread(target=work, daemon=True).start()

    def _send(self) -> None:
        """Gives each packet of the device to the thread of its destination."""
        waiting: dict[bytes, queue.SimpleQueue[bytes]] = {}
        while packet := os.read(self.device, MTU):
            address = packet[16:20]
            if address not in self.peers:
                continue
            if address not in waiting:
                waiting[address] = queue.SimpleQueue()
                arguments = (self.peers[address], self.contexts.connecting, waiting[address])
                threading.Thread(target=_send_to, args=arguments, daemon=True).start()
            if waiting[address].qsize() < _MAX_PACKETS:
                waiting[address].put(packet)
            self.last_packet = time.monotonic()

    def stop_listening(self) -> None:
        """Frees the port. The connections go on."""
        # After `close` alone, the socket exists until the thread returns from `accept`.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self.listener.accept()
            except OSError:
                return
            if self._handshakes.acquire(blocking=False):
                threading.Thread(target=self._serve, args=[plain], daemon=True).start()
            else:
                plain.close()

    def _serve(self, plain: socket.socket) -> None:
        # The other side is a stranger, has another cluster, or has left. A peer connects again.
        peers = {peer.name: peer for peer in self.peers.values()}
        with suppress(OSError, ValueError, KeyError), plain:
            try:
                plain.settimeout(_TIMEOUT_SECONDS)
                _configure(plain)
                connection = self.contexts.accepting.wrap_socket(plain, server_side=True)
            finally:
                self._handshakes.release()
            with connection:
                connection.settimeout(None)
                peer = peers[name_of(connection)]
                with connection.makefile("rb", _BUFFER_BYTES) as stream:
                    self._receive(cast(BinaryIO, stream), peer)

    def _receive(self, stream: BinaryIO, peer: Peer) -> None:
        """Gives each packet of a peer to the device."""
        while header := stream.read(_HEADER_BYTES):
            length = int.from_bytes(header[2:4])
            is_own = header[12:] == peer.address + self.address
            if header[0] >> 4 != _VERSION or length < _HEADER_BYTES or not is_own:
                raise ValueError(f"{peer.name} has sent a packet that is not its own")
            os.write(self.device, header + stream.read(length - _HEADER_BYTES))
            self.last_packet = time.monotonic()


def _send_to(peer: Peer, context: ssl.SSLContext, packets: queue.SimpleQueue[bytes]) -> None:
    """Sends packets to one peer, in a thread of its own; connects again and again."""
    is_logged = False
    while True:
        try:
            with _connect(peer, context) as connection:
                while True:
                    connection.sendall(packets.get())
        except (ssl.SSLEOFError, ConnectionError, TimeoutError):
            pass  # It does not run yet, or no longer.
        except OSError as error:
            # It has another token, or uses no TLS; or its name has no address.
            if not is_logged:
                log(f"no TLS connection to {peer.name} at {peer.host}:{peer.port}: {error}")
            is_logged = True
        time.sleep(_RETRY_SECONDS)


def _connect(peer: Peer, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection to a peer that has proved its name."""
    plain = socket.create_connection((peer.host, peer.port), _TIMEOUT_SECONDS)
    _configure(plain)
    connection = context.wrap_socket(plain, server_hostname=peer.name)
    connection.settimeout(None)
    return connection


def _configure(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    milliseconds = int(_TIMEOUT_SECONDS * 1000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
