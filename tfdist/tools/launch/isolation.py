"""Puts this process and its children into their own network namespace.

    isolate("--isolate")      # before any thread starts
    launch(job)               # other users and machines cannot connect to its tasks

TensorFlow's servers do not authenticate clients. A network namespace of Linux has a
loopback interface of its own, and no other: see network_namespaces(7) and user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from tfdist.errors import os_error_is_usage_error

# linux/sched.h, linux/sockios.h and linux/if.h.
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_UP = 0x1

_ACCEPTED = (
    "on Linux that lets users create namespaces; see the sysctls user.max_user_namespaces and "
    "kernel.apparmor_restrict_unprivileged_userns"
)
_REMEDY = "Allow it, or start the job without the flag."

_libc = ctypes.CDLL(None, use_errno=True)


def isolate(flag: str) -> None:
    """Moves this process into a new network namespace. It must have only one thread.

    Args:
      flag: the flag that asks for it.

    Raises:
      UsageError: the kernel does not allow it.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_NEW_NETWORK)
    except OSError:
        # A user without privileges has them in a namespace of its own, where it keeps its number.
        with os_error_is_usage_error(flag, True, _ACCEPTED, _REMEDY):
            _unshare(_NEW_USER | _NEW_NETWORK)
            for file, content in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                Path("/proc/self", file).write_text(content)
    bring_up(b"lo")


def bring_up(interface: bytes) -> None:
    """Starts a network interface of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", interface, 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(control, _GET_FLAGS, request), 16)
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", interface, flags | _UP))


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
