"""Refuses an output directory in which other users of the machine could redirect what is written.

    check_trusted(Path("/shared/run1"))        # in the chief, before it writes anything
    with open_own(Path("/shared/run1/metrics.jsonl"), "a") as file:
        ...

A user who may write in a directory can replace a file in it by a symbolic link. The job would
follow the link and change the file at its target. In a directory with the sticky bit, such as /tmp,
other users can add files but not replace them. There this package does not follow links.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Any

from tfdist.errors import UsageError


def check_trusted(directory: Path) -> None:
    """Checks an output directory and the directories and links in it.

    Args:
      directory: the directory, which may not exist.

    Raises:
      UsageError: everyone may write in one of them, and it is not sticky; or one is a symbolic link
        of another user.
    """
    if not directory.is_dir():
        return
    own = {os.geteuid(), directory.stat().st_uid, 0}
    with os.scandir(directory) as entries:
        children = [Path(entry.path) for entry in entries if entry.is_dir() or entry.is_symlink()]
    for path in (directory, *children):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # A temporary directory of a job that still runs.
        if stat.S_ISLNK(status.st_mode):
            if path != directory and status.st_uid not in own:
                raise UsageError(
                    "output_dir",
                    received=str(directory),
                    accepted=f"a directory without links of other users, such as {path.name}",
                    remedy="Remove the link, or choose another directory.",
                )
            continue
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise UsageError(
                "output_dir",
                received=str(directory),
                accepted=f"a directory in which not everyone may write, as in {path}",
                remedy=f"Run: chmod o-w {path}. If you trust all users of this machine, run: "
                f"chmod +t {path}.",
            )


def open_own(path: Path, mode: str) -> IO[Any]:
    """`open` for a file that this task creates or extends; does not follow a symbolic link.

    Raises:
      OSError: as `open`, and ELOOP for a link.
    """
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
