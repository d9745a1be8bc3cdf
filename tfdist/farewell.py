"""How the servers of a parameter-server job learn that their leader has ended well.

    say("10.0.0.1:2222", seconds=10.0)      # where the leader was, by who has watched over it
    is_said("10.0.0.1:2222")                # in a ps or a worker that no longer finds its leader

A server sees no more than that nothing listens at the leader's address. Where each machine starts
its task again when it fails, the servers must know whether there is anyone to wait for.
"""

from __future__ import annotations

import socket
import time

from tfdist.cluster import host_and_port

#: Set for a task that is started again when it fails, on a machine of its own.
SUPERVISED_VARIABLE = "TFDIST_SUPERVISED"

_GREETING = b"tfdist: the training is complete\n"
# TensorFlow's own servers speak first, too, and at once.
_GREETING_SECONDS = 0.5


def say(address: str, seconds: float) -> None:
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


def is_said(address: str) -> bool:
    """Whether somebody says at `address` that the training is complete."""
    return _heard(address) == _GREETING


def is_up(address: str) -> bool:
    """Whether a task listens at `address`, which does not say farewell."""
    heard = _heard(address)
    return heard is not None and heard != _GREETING


def _heard(address: str) -> bytes | None:
    """What is said at `address` before anything is asked; None where nobody listens."""
    host, port = host_and_port(address)
    try:
        with socket.create_connection((host, port), timeout=2.0) as connection:
            connection.settimeout(_GREETING_SECONDS)
            try:
                return connection.recv(len(_GREETING))
            except OSError:
                return b""
    except OSError:
        return None
