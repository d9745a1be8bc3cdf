"""Replaces a file at once, so that a reader never sees a part of it.

with replacing(path) as temporary:
    temporary.write_text(text)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same directory, and renames the file to `path` at the end.

    Removes the file on any error. Only a process that is killed leaves it behind, as a hidden file.

    Raises:
      OSError: the file could not be renamed.
    """
    # `tempfile` creates files that only their owner can read. Another user cannot guess the name,
    # and so cannot put a link there.
    temporary = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
