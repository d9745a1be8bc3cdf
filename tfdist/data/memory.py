"""Determines the memory that is available for data, on this machine or in this container.

available()    # 16_000_000_000, in bytes
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from tfdist.process import cgroups


def available(root: Path = Path("/")) -> int:
    """The machine's available memory in bytes, or this process's cgroup limit if that is less.

    Args:
      root: the directory that has `/proc` and the cgroups.
    """
    limits = [int(psutil.virtual_memory().available)]
    for directory in cgroups.directories("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):  # Of version 2 and 1.
            with contextlib.suppress(OSError, ValueError):  # "max" is no limit.
                limits.append(int((directory / name).read_text()))
    return min(limits)
