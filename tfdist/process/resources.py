"""Checks what a process needs from the operating system, and reads the state of processes."""

from __future__ import annotations

import errno
import multiprocessing
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

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


def status(pid: int) -> str:
    """The status of a process, one of psutil's constants; empty if there is no such process."""
    with suppress(psutil.Error):
        return str(psutil.Process(pid).status())
    return ""


def is_suspended(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    return status(pid) in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


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
