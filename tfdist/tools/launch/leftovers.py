"""Removes the temporary files that AutoGraph leaves behind when a task is killed.

    remove_generated_modules(Path(tempfile.gettempdir()))

TensorFlow writes each function that it converts as a module, and removes it when the process exits.
A file does not tell whose it is. One that is older than every process of this user that runs
TensorFlow belongs to none of them.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

_PATTERNS = ("__autograph_generated_file*.py", "__pycache__/__autograph_generated_file*.pyc")
# In the memory map of a process that has imported TensorFlow.
_LIBRARY = b"/tensorflow/"
# The boot time of the kernel and the times of files differ by so much at most.
_MARGIN_SECONDS = 5.0


def remove_generated_modules(directory: Path) -> None:
    """Removes modules of AutoGraph that belong to no process.

    Args:
      directory: the directory for temporary files.
    """
    found = [path for pattern in _PATTERNS for path in directory.glob(pattern)]
    if not found:
        return
    oldest = min(_starts_of_tensorflow(), default=time.time())
    for path in found:
        # Another launcher may remove it, too.
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < oldest - _MARGIN_SECONDS:
                path.unlink()


def _starts_of_tensorflow() -> list[float]:
    """When the processes of this user that have loaded TensorFlow began, in seconds since 1970."""
    # Most launchers find no such files.
    import psutil

    found = []
    for process in psutil.process_iter():
        # It may have ended, or belong to another user.
        with suppress(OSError, psutil.Error):
            maps = Path(f"/proc/{process.pid}/maps")
            if process.uids().real == os.getuid() and _LIBRARY in maps.read_bytes():
                found.append(process.create_time())
    return found
