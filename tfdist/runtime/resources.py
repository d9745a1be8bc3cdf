"""What a process needs of the operating system: temporary files, semaphores, open files, time."""

from __future__ import annotations

import errno
import multiprocessing
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfdist.errors import UsageError


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


def is_suspended(process: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return False
    return state in ("T", "t")


@contextmanager
def limited_open_files() -> Iterator[None]:
    """Converts the error for too many open files.

    Raises:
      UsageError: the block needs more open files than the process may have.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
        raise UsageError(
            "ulimit -n",
            received=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            accepted="more open files than that for so many tasks",
            remedy="Raise the limit: `ulimit -n 1024`.",
        ) from None
