"""How much memory there is for data: the machine's, or what a container is allowed.

available()    # 16_000_000_000, in bytes
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path


def available(root: Path = Path("/")) -> int:
    """Bytes that the machine has available, or the limit of this process's group if that is less.

    Args:
      root: where `proc` and `sys` are.

    Returns:
      `sys.maxsize` where neither is known, as on other systems than Linux.
    """
    return min([*_of_machine(root), *_of_groups(root)], default=sys.maxsize)


def _of_machine(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _of_groups(root: Path) -> Iterator[int]:
    """The limits of the process's control group and of those around it (cgroups(7), v1 and v2)."""
    groups = []
    with contextlib.suppress(OSError):
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    for line in groups:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            mount, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        place = mount / group.lstrip("/")
        # In a container the group's path may be that of its host; the mount is the group then.
        for directory in (place, *place.parents):
            with contextlib.suppress(OSError, ValueError):  # "max" is no limit.
                yield int((directory / name).read_text())
            if directory == mount:
                break
