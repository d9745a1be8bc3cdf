"""A file system whose file can be opened, and never read: as on an NFS whose server is gone.

    with stuck_file(directory) as path:
        path.read_bytes()     # never returns; SIGKILL ends it

A server of FUSE (linux/fuse.h, protocol 7.31) that does not answer reads. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _INIT, _INTERRUPT = 1, 2, 3, 14, 15, 26, 36
_UNANSWERED = (_FORGET, _READ, _INTERRUPT)
_ROOT, _FILE = 1, 2
_SECONDS = 3600
# MNT_FORCE and MNT_DETACH: what reads ends with an error.
_FORCE_AND_DETACH = 1 | 2
_NOT_SUPPORTED = 38
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def stuck_file(directory: Path) -> Iterator[Path]:
    """A file of 1 MiB in a new file system at `directory`, an empty directory."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    where = os.fsencode(directory)
    if _libc.mount(b"stuck", where, b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    threading.Thread(target=_serve, args=[device], daemon=True).start()
    try:
        yield directory / "file"
    finally:
        _libc.umount2(where, _FORCE_AND_DETACH)
        os.close(device)


def _serve(device: int) -> None:
    with suppress(OSError):
        while request := os.read(device, 1 << 20):
            _, operation, number, node = struct.unpack_from("IIQQ", request)
            if operation in _UNANSWERED:
                continue
            answer = _answer(operation, node)
            error = 0 if answer else -_NOT_SUPPORTED
            os.write(device, struct.pack("IiQ", 16 + len(answer), error, number) + answer)


def _answer(operation: int, node: int) -> bytes:
    if operation == _INIT:
        return struct.pack("IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 1 << 16, 1, 0, 0, 0)
    if operation == _LOOKUP:
        return struct.pack("QQQQII", _FILE, 0, _SECONDS, _SECONDS, 0, 0) + _attributes(_FILE)
    if operation == _GETATTR:
        return struct.pack("QII", _SECONDS, 0, 0) + _attributes(node)
    if operation == _OPEN:
        return struct.pack("QII", 0, 0, 0)
    return b""


def _attributes(node: int) -> bytes:
    mode = 0o040755 if node == _ROOT else 0o100644
    return struct.pack("6Q3I7I", node, 1 << 20, 2048, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
