"""Listens on a port of this machine, on all interfaces, as TensorFlow's servers do.

with listen(2222) as listener:
    connection, origin = listener.accept()
"""

from __future__ import annotations

import socket


def listen(port: int = 0, backlog: int | None = None) -> socket.socket:
    """A socket that listens for IPv4, and for IPv6 where the machine has it.

    Args:
      port: the port; 0 for any free one.
      backlog: the connections that wait to be accepted; the kernel may have a lower limit.

    Raises:
      OSError: the port cannot be bound.
    """
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=backlog)
