"""The temporary directory of a launcher.

with run_directory() as directory:    # also removes those of launchers that were killed
    ...
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_directory() -> Iterator[Path]:
    """Yields a new directory, which is removed at the end of the block."""
    parent = Path(tempfile.gettempdir())
    for path in parent.glob("tfdist-run-*"):
        # The name has the number of the launcher. Another user's directory cannot be removed.
        if not Path("/proc", path.name.split("-")[2]).exists():
            shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"tfdist-run-{os.getpid()}-") as directory:
        yield Path(directory)
