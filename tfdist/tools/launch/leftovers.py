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

from tfdist.process.resources import process_status

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
    oldest = min((_started(pid) for pid in _tensorflow_processes()), default=time.time())
    for path in found:
        # Another launcher may remove it, too.
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < oldest - _MARGIN_SECONDS:
                path.unlink()


def _tensorflow_processes() -> list[int]:
    """The processes of this user that have loaded TensorFlow."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            # It may have ended, or belong to another user.
            with suppress(OSError):
                if path.stat().st_uid == os.getuid() and _LIBRARY in (path / "maps").read_bytes():
                    found.append(int(path.name))
    return found


def _started(pid: int) -> float:
    """When a process has started, in seconds since 1970; 0 if it has ended meanwhile."""
    with suppress(OSError):
        since_boot = int(process_status(pid)[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    return 0.0
