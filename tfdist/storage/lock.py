"""The lock of an output directory: one job at a time writes there.

    hold(OutputDirectory("/shared/run1").lock)    # in the chief, before it writes anything
    is_held(OutputDirectory("/shared/run1").lock)    # in another process: True

It is an open-file-description lock of Linux. NFS and Lustre carry it to other machines, and the
kernel releases it when the process ends, in whatever way. An ordinary record lock (`fcntl.lockf`)
would be lost when the process closes another descriptor of the file, as a script does that copies
the directory. `flock` stays on one machine on some mounts.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from tfdist.errors import OutputError, log
from tfdist.process.deadline import wait_until
from tfdist.storage.output_directory import not_writable
from tfdist.storage.trust import check_trusted

# A process that was killed, or that has saved and exits, may take some time to end.
_WAIT_SECONDS = 5.0
_RETRY_SECONDS = 0.1

# The C structure `flock`: type, whence, start, length (0: to the end), process.
_WRITE_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_IS_TAKEN = (errno.EAGAIN, errno.EACCES)
# EINVAL: the kernel has no locks of this kind.
_IS_UNSUPPORTED = (errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

# The open files of the locks that this process holds, by device and inode.
_held: dict[tuple[int, int], int] = {}


def hold(path: Path) -> None:
    """Takes a lock until this process ends; does nothing if this process already holds it.

    Waits a few seconds for a process that is about to end. If the file system has no locks, logs
    one sentence and returns.

    Args:
      path: the file of the lock. It stays when the lock is released, and describes the process that
        was the last to take the lock.

    Raises:
      UsageError: the file cannot be written, or others could redirect it; see `trust`.
      OutputError: another process holds the lock.
    """
    try:
        with suppress(FileExistsError):
            path.parent.mkdir(parents=True)
        check_trusted(path.parent)
        with ExitStack() as stack:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            stack.callback(os.close, file)
            status = os.fstat(file)
            if (status.st_dev, status.st_ino) not in _held:
                _take(file, path)
                _held[status.st_dev, status.st_ino] = file
                stack.pop_all()
    except OSError as error:
        raise not_writable(path.parent, error) from None


def is_held(path: Path) -> bool | None:
    """Whether another process holds a lock; None if the file system has no locks.

    Args:
      path: the file of the lock.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        found = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WRITE_LOCK)
    except OSError:
        return None
    finally:
        os.close(file)
    kind: int = struct.unpack_from("h", found)[0]
    return kind != fcntl.F_UNLCK


def _take(file: int, path: Path) -> None:
    if not wait_until(partial(_try_to_lock, file, path), _WAIT_SECONDS, pause=_RETRY_SECONDS):
        raise OutputError(
            path.parent,
            problem=f"is in use by another job ({holder(path)})",
            remedy="Wait until that job has ended, or end it, or choose another directory.",
        )
    started = datetime.now().astimezone().isoformat(" ", "seconds")
    description = {"host": socket.gethostname(), "pid": os.getpid(), "started": started}
    os.ftruncate(file, 0)
    os.pwrite(file, (json.dumps(description) + "\n").encode(), 0)
    # Other machines may not see it before.
    os.fsync(file)


def _try_to_lock(file: int, path: Path) -> bool:
    """Tries to take the lock; False if another process has it, True if locks are not supported."""
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WRITE_LOCK)
    except OSError as error:
        if error.errno in _IS_TAKEN:
            return False
        if error.errno not in _IS_UNSUPPORTED:
            raise
        log(
            f"{path} cannot be locked ({os.strerror(error.errno)}), so make sure that no other "
            "job writes in this directory"
        )
    return True


def holder(path: Path) -> str:
    """The process that was the last to take a lock, in words."""
    # A shared file system may show late what another machine has created.
    wait_until(path.exists, _WAIT_SECONDS, pause=_RETRY_SECONDS)
    try:
        found = json.loads(path.read_text())
        return f"process {found['pid']} on {found['host']}, started {found['started']}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return f"its process is not named in {path.name}"


def _release_in_child() -> None:
    """Closes the files in a child process, which would keep the locks after this process ends."""
    for file in _held.values():
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)
