"""The cgroups of this process, whose files limit its cores and its memory (cgroups(7), v1 and v2).

for directory in directories("cpu"):
    print((directory / "cpu.max").read_text())
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def directories(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """The cgroups whose limits may apply to this process, each with those above it.

    Args:
      controller: the name of what is limited, such as `cpu`.
      root: the directory that contains `proc` and `sys`.
    """
    memberships = []
    with suppress(OSError):
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    for line in memberships:
        # Like `3:cpu,cpuacct:/path`; version 2 names no controllers: `0::/path`.
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = mount / path.lstrip("/")
        # In a container the path may be the machine's. Then only the mount itself exists.
        yield from (each for each in (own, *own.parents) if each.is_relative_to(mount))
