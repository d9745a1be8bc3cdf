"""Identifies what listens at the address of a task.

    identify("10.0.0.1:2222")                        # Listener.SERVER: the task trains or serves
    wait_for_server("10.0.0.1:2222", seconds=5.0)    # True as soon as that is so

The tasks of a job use one address each for several programs in turn: the startup barrier, then the
TensorFlow server, and finally the completion notice of `tfdist.coordination.shutdown`. They differ
in what they send on a new connection, which is all that a probe needs.
"""

from __future__ import annotations

import contextlib
import enum
import socket

from tfdist.cluster import host_and_port
from tfdist.coordination.shutdown import COMPLETION_NOTICE, is_proved
from tfdist.process.deadline import wait_until

_CONNECT_SECONDS = 2.0
# A TensorFlow server and a completion notice send their first bytes at once.
_GREETING_SECONDS = 0.5
_ANSWER_SECONDS = 1.5
_POLL_SECONDS = 0.02
# Frame header of HTTP/2 (RFC 9113, section 4.1): a length in 3 bytes, a type, flags, and a stream
# in 4 bytes. A gRPC server begins each connection with a frame of type SETTINGS on stream 0.
_SETTINGS = b"\x04\x00\x00\x00\x00\x00"
# What a client sends first (RFC 9113, section 3.4): the preface, and a frame with no settings.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00" + _SETTINGS


class Listener(enum.Enum):
    """What listens at an address."""

    REFUSED = enum.auto()  # No process listens, or the process that listened is exiting.
    UNRESOLVED = enum.auto()  # The host name does not resolve.
    UNREACHABLE = enum.auto()  # The machine does not answer, or there is no route to it.
    SILENT = enum.auto()  # The machine accepts the connection; the process sends nothing.
    BARRIER = enum.auto()  # A task at the startup barrier.
    SERVER = enum.auto()  # A TensorFlow server.
    COMPLETED = enum.auto()  # A launcher that sends the completion notice.
    OTHER = enum.auto()  # Another program.


#: A process of the job is running.
RUNNING = (Listener.SILENT, Listener.BARRIER, Listener.SERVER)


def identify(address: str, token: str = "") -> Listener:
    """Connects to an address and identifies what listens there, within 5 seconds.

    Args:
      address: `host:port`.
      token: the job's token; a completion notice of a process without it is from another program.
    """
    try:
        with socket.create_connection(host_and_port(address), _CONNECT_SECONDS) as connection:
            # Where nothing listens, the kernel may connect a local port to itself.
            if connection.getsockname() == connection.getpeername():
                return Listener.REFUSED
            return _identify(connection, token)
    except ConnectionError:
        return Listener.REFUSED
    except socket.gaierror:
        return Listener.UNRESOLVED
    except OSError:
        return Listener.UNREACHABLE


def accepts(address: tuple[str, int]) -> bool:
    """Whether a process listens at a host and a port."""
    with contextlib.suppress(OSError), socket.create_connection(address, _CONNECT_SECONDS):
        return True
    return False


def is_grpc_server(received: bytes) -> bool:
    """Whether the first bytes received on a connection are those of a gRPC server."""
    return received[3:9] == _SETTINGS


def wait_for_server(address: str, seconds: float) -> bool:
    """Waits until a TensorFlow server listens at `address`, for `seconds` at most.

    Returns:
      Whether one does.
    """

    def listens() -> bool:
        return identify(address) is Listener.SERVER

    return wait_until(listens, seconds, pause=_POLL_SECONDS)


def _identify(connection: socket.socket, token: str) -> Listener:
    connection.settimeout(_GREETING_SECONDS)
    try:
        received = connection.recv(len(COMPLETION_NOTICE))
    except TimeoutError:
        # The startup barrier waits for a message, and closes the connection after an invalid one.
        connection.sendall(b"\n")
        connection.settimeout(_ANSWER_SECONDS)
        try:
            received = connection.recv(len(COMPLETION_NOTICE))
        except TimeoutError:
            return Listener.SILENT
        if not received:
            return Listener.BARRIER
    if not received:
        return Listener.REFUSED
    if received == COMPLETION_NOTICE:
        return Listener.COMPLETED if is_proved(connection, token) else Listener.OTHER
    if not is_grpc_server(received):
        return Listener.OTHER
    # Until it has the preface, a gRPC server keeps a socket of a closed connection open for 120 s:
    # the probes of 16 tasks would take 7,680 file descriptors of the chief.
    with contextlib.suppress(OSError):
        connection.sendall(_PREFACE)
    return Listener.SERVER
