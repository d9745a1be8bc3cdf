"""Determines the memory that is available for data, on this machine or in this container.

available()    # 16_000_000_000, in bytes
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tfdist.process import cgroups


def available(root: Path = Path("/")) -> int:
    """The machine's available memory in bytes, or this process's cgroup limit if that is less.

    Args:
      root: the directory that contains `proc` and `sys`.

    Returns:
      Bytes; `sys.maxsize` if neither is known, for example on systems other than Linux.
    """
    return min([*_of_machine(root), *_of_groups(root)], default=sys.maxsize)


def _of_machine(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _of_groups(root: Path) -> Iterator[int]:
    """The limits of the process's cgroups and of those above them."""
    for directory in cgroups.directories("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # "max" is no limit.
                yield int((directory / name).read_text())
