"""Tells the user before the memory of this machine, or of its container, ends: `Memory`.

    memory = Memory("ps:0")
    memory.look()      # now and then; warns once

Linux kills a process when no memory is left, and the job fails without a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tfdist.errors import log
from tfdist.process import quantities

# Of all memory, what should be left.
_SHARE = 0.1
_CONTAINER = Path("/sys/fs/cgroup")


def left_of(container: Path = _CONTAINER) -> tuple[int, int]:
    """The bytes that are left, and all that there are, on this machine or in its container.

    Args:
      container: where Linux has the limits of this process (cgroup v2).
    """
    machine = psutil.virtual_memory()
    with suppress(OSError, ValueError):  # "max" is no number.
        limit = int((container / "memory.max").read_text())
        used = int((container / "memory.current").read_text())
        if limit < machine.total:
            return min(limit - used, machine.available), limit
    return machine.available, machine.total


@dataclass
class Memory:
    """Looks at the memory of a task.

    Args:
      task: the name of the task.
      measure: as `left_of`.
    """

    task: str
    measure: Callable[[], tuple[int, int]] = left_of
    _has_warned: bool = False

    def look(self) -> None:
        """Warns once if less than a tenth is left, and this process has more than that."""
        left, total = self.measure()
        if self._has_warned or left > _SHARE * total:
            return
        own = psutil.Process().memory_info().rss
        if own > left:
            self._has_warned = True
            log(
                f"warning: {self.task} uses {quantities.size(own)}, and of the "
                f"{quantities.size(total)} of its machine or container {quantities.size(left)} are "
                "left; use more parameter servers, or tables with a smaller capacity"
            )
