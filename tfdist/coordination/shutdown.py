"""How the servers of a parameter-server job learn that their leader has ended well.

    announce_completion("10.0.0.1:2222", seconds=10.0)    # its supervisor
    listener("10.0.0.1:2222")               # in a ps or a worker that looks for its leader

A server sees no more than that nothing listens at the leader's address. Where each machine starts
its task again when it fails, the servers must know whether there is anyone to wait for. A leader
that is back before they have missed it waits for them to leave, and to come again.
"""

from __future__ import annotations

import contextlib
import enum
import socket
import time

from tfdist.cluster import host_and_port

#: Set for a task that is started again when it fails, on a machine of its own.
RESTARTABLE_VARIABLE = "TFDIST_SUPERVISED"

_GREETING = b"tfdist: the training is complete\n"
# TensorFlow's own servers speak first, too, and at once.
_GREETING_SECONDS = 0.5
_SECONDS = 2.0
_SHORTEST_WAIT = 0.02


def announce_completion(address: str, seconds: float) -> None:
    """Answers at `address` for so many seconds, on all interfaces as TensorFlow has listened.

    Raises:
      OSError: the port cannot be bound.
    """
    _, port = host_and_port(address)
    until = time.monotonic() + seconds
    dualstack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dualstack else socket.AF_INET
    with socket.create_server(("", port), family=family, dualstack_ipv6=dualstack) as server:
        while (left := until - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                connection, _ = server.accept()
            except TimeoutError:
                return
            with connection:
                connection.settimeout(_GREETING_SECONDS)
                try:
                    connection.sendall(_GREETING)
                except OSError:
                    continue


class Listener(enum.Enum):
    """Who listens at an address."""

    NOBODY = enum.auto()  # The machine says so.
    UNREACHABLE = enum.auto()  # Nobody answers: the machine, the network or the name is gone.
    FAREWELL = enum.auto()  # Somebody who says that the training is complete.
    MEETING = enum.auto()  # A task that waits for the others, before it trains.
    SERVER = enum.auto()  # A task that trains: TensorFlow's server speaks first.
    SILENT = enum.auto()  # Somebody who says nothing; it may be stopped, or busy.


#: A task that has not ended.
UP = (Listener.MEETING, Listener.SERVER, Listener.SILENT)


def listener(address: str) -> Listener:
    """Who listens at `address`."""
    try:
        with socket.create_connection(host_and_port(address), timeout=_SECONDS) as connection:
            # Where nothing listens, the kernel may connect a local port with itself.
            is_itself = connection.getsockname() == connection.getpeername()
            return Listener.NOBODY if is_itself else _listener(connection)
    except ConnectionRefusedError:
        return Listener.NOBODY
    except OSError:
        return Listener.UNREACHABLE


def wait_for_server(address: str, seconds: float) -> None:
    """Waits until TensorFlow's server listens at `address`, and no longer than so many seconds."""
    until = time.monotonic() + seconds
    while listener(address) is not Listener.SERVER and time.monotonic() < until:
        time.sleep(_SHORTEST_WAIT)


def wait_for_hang_up(address: str, seconds: float) -> None:
    """Waits so many seconds, or until whoever listens at `address` is seen to end."""
    until = time.monotonic() + seconds
    with (
        contextlib.suppress(OSError),
        socket.create_connection(host_and_port(address), timeout=seconds) as connection,
    ):
        while (left := until - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(1 << 12):
                break
    # It may be there, and say no more.
    time.sleep(_SHORTEST_WAIT)


def _listener(connection: socket.socket) -> Listener:
    try:
        connection.settimeout(_GREETING_SECONDS)
        try:
            heard = connection.recv(len(_GREETING))
        except TimeoutError:
            # Whoever meets the others hangs up on one that says nothing it knows.
            connection.settimeout(_SECONDS)
            connection.sendall(b"\n")
            if not connection.recv(1):
                return Listener.MEETING
            return Listener.SERVER
    except OSError:
        return Listener.SILENT
    if heard == _GREETING:
        return Listener.FAREWELL
    return Listener.SERVER if heard else Listener.SILENT
