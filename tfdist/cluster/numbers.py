"""Numbers in the environment variables of engines, which may contain any text."""

from __future__ import annotations

import re

#: The most tasks, and the most hosts, of a job.
MOST_TASKS = 1_000_000


def is_number(text: str) -> bool:
    """Whether a text is a number from 0 with at most 18 digits."""
    return re.fullmatch("[0-9]{1,18}", text) is not None
