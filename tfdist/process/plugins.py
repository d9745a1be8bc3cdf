"""What installed packages add to tfdist's tables by entry points."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from tfdist.errors import log


def installed(group: str, what: str) -> Iterator[Any]:
    """Loads each object of a group of entry points.

    A broken package must not break the jobs that do not use it: it is logged, and left out.

    Args:
      group: the name of the group.
      what: what the objects are, for the warning.
    """
    for point in entry_points(group=group):
        try:
            yield point.load()
        except Exception as error:
            log(
                f"warning: the {what} {point.name} of {point.value} is not available: "
                f"{type(error).__name__}: {error}"
            )
