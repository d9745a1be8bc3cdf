"""The temporary directory of a launcher, which outlives one that was killed.

with run_directory() as directory:    # also removes those of launchers that are gone
    ...
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tfdist.tools.launch.leftovers import remove_generated_modules

_PREFIX = "tfdist-run-"
# A launcher locks its directory a moment after it has created it.
_YOUNG_SECONDS = 60.0


@contextmanager
def run_directory() -> Iterator[Path]:
    """Yields a new directory, which is locked while the block runs, and removed at its end."""
    parent = Path(tempfile.gettempdir())
    _remove_abandoned(parent)
    remove_generated_modules(parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as directory:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(directory)
        finally:
            os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Removes the directories of this user that no launcher has locked."""
    for path in parent.glob(f"{_PREFIX}*"):
        # Another launcher may remove it, too; another user's may not be readable.
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(descriptor)
                if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
                    continue
                if time.time() - status.st_mtime < _YOUNG_SECONDS:
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
