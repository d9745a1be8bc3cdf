"""Checks what a process needs from the operating system, and reads the state of processes."""

from __future__ import annotations

import errno
import multiprocessing
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfdist.errors import UsageError

# With a few less, a job starts, and its fork server cannot report the exit codes.
_LEAST_OPEN_FILES = 32


def check_temporary_directory() -> None:
    """Checks that there is a directory for temporary files.

    Raises:
      UsageError: there is none.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UsageError(
            "TMPDIR",
            received=error.strerror,
            accepted="a directory that this process can write",
            remedy="Set TMPDIR to one.",
        ) from None


def check_semaphores() -> None:
    """Checks that this process can create a POSIX semaphore, for which Linux needs /dev/shm.

    Raises:
      UsageError: it cannot.
    """
    try:
        multiprocessing.Lock()
    except OSError as error:
        raise UsageError(
            "/dev/shm",
            received=error.strerror,
            accepted="a directory that this process can write, for semaphores",
            remedy="Mount a tmpfs there: `mount -t tmpfs tmpfs /dev/shm`, or in a container "
            "--shm-size=64m.",
        ) from None


def process_status(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` after the name, from the state on, as in proc(5).

    Raises:
      OSError: there is no such process.
    """
    # The name may contain spaces and parentheses.
    text = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
    return text.decode("ascii").split()


def is_suspended(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    try:
        return process_status(pid)[0] in ("T", "t")
    except OSError:
        return False


@contextmanager
def limited_open_files() -> Iterator[None]:
    """Converts the error for too many open files.

    Raises:
      UsageError: the block needs more open files than the process may have.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= _LEAST_OPEN_FILES:
        try:
            yield
            return
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
    raise UsageError(
        "ulimit -n",
        received=limit,
        accepted="more open files than that for so many tasks",
        remedy="Raise the limit: `ulimit -n 1024`.",
    )
