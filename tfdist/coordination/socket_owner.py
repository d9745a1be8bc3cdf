"""Finds the user whose process has the other end of a connection within this machine.

    if is_of_another_user(client_address, server_address):
        connection.close()

Linux lists the sockets of this network namespace with their users: proc(5), `/proc/net/tcp`.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from tfdist.coordination.startup.addresses import is_of_this_machine, plain

_LISTS = ("/proc/net/tcp", "/proc/net/tcp6")
# The fields of a line.
_LOCAL, _REMOTE, _USER = 1, 2, 7


def is_of_another_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Whether a connection comes from a process of another user of this machine.

    Args:
      client: the address and the port from which it comes.
      server: the address and the port to which it goes, both of this process.

    Returns:
      True also if the other end is closed already; False if it comes from another machine.
    """
    if not is_of_this_machine(plain(client[0])):
        return False
    return os.getuid() not in _users(client, server)


def _users(local: tuple[str, int], remote: tuple[str, int]) -> set[int]:
    """The users that have a socket with these two ends."""
    locals_, remotes = _notations(*local), _notations(*remote)
    users = set()
    for path in _LISTS:
        try:
            lines = Path(path).read_text().splitlines()[1:]
        except OSError:
            continue  # A kernel without IPv6 has no second list.
        for fields in map(str.split, lines):
            if fields[_LOCAL] in locals_ and fields[_REMOTE] in remotes:
                users.add(int(fields[_USER]))
    return users


def _notations(ip: str, port: int) -> tuple[str, ...]:
    """An address as the kernel's lists write it: in IPv4, and mapped to IPv6."""
    ip = plain(ip)
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    packed = [socket.inet_pton(family, ip)]
    if family == socket.AF_INET:
        packed.append(socket.inet_pton(socket.AF_INET6, f"::ffff:{ip}"))
    return tuple(f"{_hexadecimal(address)}:{port:04X}" for address in packed)


def _hexadecimal(packed: bytes) -> str:
    """Formats four-byte words as hexadecimal digits, in this machine's byte order."""
    step = -1 if sys.byteorder == "little" else 1
    words = (packed[start : start + 4][::step] for start in range(0, len(packed), 4))
    return b"".join(words).hex().upper()
