"""Reads numbers from the environment variables of engines, which may contain any text.

number_in(os.environ, "SLURM_PROCID", remedy="Unset the variables of Slurm.")
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tfdist.errors import UsageError

#: The most tasks, and the most hosts, of a job.
MOST_TASKS = 1_000_000


def is_number(text: str) -> bool:
    """Whether a text is a number from 0 with at most 18 digits."""
    return re.fullmatch("[0-9]{1,18}", text) is not None


def number_in(
    environ: Mapping[str, str], name: str, *, remedy: str, least: int = 0, most: int = 10**18
) -> int:
    """The number in a variable.

    Raises:
      UsageError: it is not a number from `least` to `most`.
    """
    text = environ.get(name, "").strip()
    if not is_number(text) or not least <= int(text) <= most:
        limit = f" to {most}" if most < 10**18 else ""
        raise UsageError(
            name,
            received=environ.get(name),
            accepted=f"a number from {least}{limit}",
            remedy=remedy,
        )
    return int(text)
