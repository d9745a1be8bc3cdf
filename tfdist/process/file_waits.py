"""Finds the file for which this process waits, because its disk or network file system hangs.

    file_wait()      # 'reads /data/train.tfrecord'; empty if no thread waits

The kernel tells in which system call a thread is (`/proc/self/task/*/syscall`, proc(5)).
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from pathlib import Path

# The numbers of the calls whose first argument is a descriptor: pread64, read, readv, preadv;
# pwrite64, write, writev, pwritev, fsync, fdatasync. And of those whose second one is a path:
# openat, newfstatat, statx.
_READS, _WRITES, _OPENS = {
    "x86_64": ({0, 17, 19, 295}, {1, 18, 20, 296, 74, 75}, {257, 262, 332}),
    "aarch64": ({63, 65, 67, 69}, {64, 66, 68, 70, 82, 83}, {56, 79, 291}),
}.get(platform.machine(), (set(), set(), set()))
_PATH_BYTES = 4096
# A thread that is in the same call after this time waits for a disk.
_SECONDS = 0.3


def file_wait() -> str:
    """What a thread of this process waits for: `reads PATH`, `writes PATH` or `opens PATH`."""
    before = _calls()
    if not before:
        return ""
    time.sleep(_SECONDS)
    after = _calls()
    return next((text for thread, text in before.items() if after.get(thread) == text), "")


def _calls() -> dict[str, str]:
    """What each thread does with a file; others are left out."""
    found = {}
    with suppress(OSError):  # There is no such file in some containers.
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                if text := _call((thread / "syscall").read_text()):
                    found[thread.name] = text
    return found


def _call(line: str) -> str:
    """Describes a line of a `syscall` file: `reads PATH` for `17 0x5 …`; empty for other calls."""
    first, *arguments = line.split()
    if not first.isdecimal():  # `running`
        return ""
    number = int(first)
    if number in _OPENS:
        return f"opens {_text(_string_at(int(arguments[1], 16)))}"
    if number not in _READS | _WRITES:
        return ""
    # Reading the link does not touch the file system of the file.
    path = _text(os.readlink(b"/proc/self/fd/%d" % int(arguments[0], 16)))
    # A pipe, a socket and a device, such as a terminal, may be waited for.
    if not path.startswith("/") or path.startswith("/dev/"):
        return ""
    return f"{'reads' if number in _READS else 'writes'} {path}"


def _string_at(address: int) -> bytes:
    """The C string at an address of this process.

    Raises:
      OSError: the memory was freed, because the call has returned.
    """
    # `ctypes` would crash in this case.
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        # A read does not go past the last page that exists.
        return memory.read(_PATH_BYTES).partition(b"\0")[0]


def _text(path: bytes) -> str:
    return path.decode(errors="replace")
