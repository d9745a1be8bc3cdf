"""`local_path`: every path that a user gives passes through it.

local_path("--log_dir", "~/logs")                # PosixPath('/home/me/logs')
local_path("output_dir", "gs://bucket/run1")     # UsageError
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tfdist.errors import UsageError

# `Path("gs://bucket")` has one slash.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def local_path(field: str, path: str | os.PathLike[str]) -> Path:
    """A path of this machine's file systems, with the home directory in place of `~`.

    Args:
      field: the name of the path, as the user writes it.
      path: the path.

    Raises:
      UsageError: it is a URL, such as `gs://bucket/run1`; or not valid UTF-8, as TensorFlow
        requires; or it has a null character.
    """
    text = os.fspath(path)
    text = text if "\0" in text else os.path.expanduser(text)  # Which looks for a user.
    if "\0" in text or text.encode(errors="ignore").decode() != text:
        accepted = "a path that is valid UTF-8, as TensorFlow requires, without a null character"
        remedy = "Choose another path, or rename the directory."
    elif _SCHEME.match(text):
        accepted = "a path in a file system of this machine, because tfdist reads and writes no URL"
        remedy = "Mount the storage in all tasks, and give the path there."
    else:
        return Path(text)
    raise UsageError(field, received=text, accepted=accepted, remedy=remedy)
