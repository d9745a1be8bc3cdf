"""Finds the user whose process has the other end of a connection within this machine.

    if is_of_another_user(client_address, server_address):
        connection.close()

Linux is asked for the one socket: sock_diag(7). Where it does not answer, it lists all sockets of
this network namespace: proc(5), `/proc/net/tcp`. That takes about 10 ms of CPU time a list.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
from pathlib import Path

from tfdist.coordination.startup.addresses import is_of_this_machine, plain

_LISTS = ("/proc/net/tcp", "/proc/net/tcp6")
# The fields of a line.
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9

# linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 4, 20, 1, 2
_HEADER = struct.Struct("=IHHII")
_ENDS = struct.Struct("!HH16s16s")
_REQUEST = struct.Struct(f"=BBBBI{_ENDS.size}sIII")
_REPLY = struct.Struct(f"=BBBB{_ENDS.size}s12sIIIII")
_ANY = 0xFFFFFFFF


def is_of_another_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Whether a connection comes from a process of another user of this machine.

    Args:
      client: the address and the port from which it comes.
      server: the address and the port to which it goes, both of this process.

    Returns:
      True also if the other end is closed already, because Linux then says that it is root's;
      False if it comes from another machine.
    """
    if not is_of_this_machine(plain(client[0])):
        return False
    try:
        users = _asked(client, server)
    except OSError:
        users = _listed(client, server)
    return os.getuid() not in users


def _asked(local: tuple[str, int], remote: tuple[str, int]) -> set[int]:
    """The user that has the socket with these two ends, if there is one.

    Raises:
      OSError: the kernel does not answer.
    """
    family, own = _packed(local[0])
    ends = _ENDS.pack(local[1], remote[1], own, _packed(remote[0])[1])
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY, ends, 0, _ANY, _ANY)
    size = _HEADER.size + _REQUEST.size
    header = _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(header + request)
        reply = kernel.recv(4096)
    if _HEADER.unpack_from(reply)[1] == _NLMSG_ERROR:
        error = -struct.unpack_from("=i", reply, _HEADER.size)[0]
        if error == errno.ENOENT:
            return set()
        raise OSError(error, os.strerror(error))
    *_, found, _, _, _, _, user, inode = _REPLY.unpack_from(reply, _HEADER.size)
    # A socket that listens at the port of the client is not its connection. The ports are enough:
    # the addresses of an IPv4 connection may be those of IPv6.
    return {user} if inode and found[:4] == ends[:4] else set()


def _listed(local: tuple[str, int], remote: tuple[str, int]) -> set[int]:
    """The users that have a socket with these two ends."""
    locals_, remotes = _notations(*local), _notations(*remote)
    users = set()
    for path in _LISTS:
        try:
            lines = Path(path).read_text().splitlines()[1:]
        except OSError:
            continue  # A kernel without IPv6 has no second list.
        for fields in map(str.split, lines):
            has_ends = fields[_LOCAL] in locals_ and fields[_REMOTE] in remotes
            if has_ends and fields[_INODE] != "0":
                users.add(int(fields[_USER]))
    return users


def _notations(ip: str, port: int) -> tuple[str, ...]:
    """An address as the kernel's lists write it: in IPv4, and mapped to IPv6."""
    family, packed = _packed(ip)
    mapped = bytes(10) + b"\xff\xff" + packed  # RFC 4291, 2.5.5.2
    found = [packed, mapped] if family == socket.AF_INET else [packed]
    return tuple(f"{_hexadecimal(address)}:{port:04X}" for address in found)


def _packed(ip: str) -> tuple[int, bytes]:
    """The family of an address, and its bytes in the order of the network."""
    ip = plain(ip)
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return family, socket.inet_pton(family, ip)


def _hexadecimal(packed: bytes) -> str:
    """Formats four-byte words as hexadecimal digits, in this machine's byte order."""
    step = -1 if sys.byteorder == "little" else 1
    words = (packed[start : start + 4][::step] for start in range(0, len(packed), 4))
    return b"".join(words).hex().upper()
