"""`within`: calls a function with a time limit.

text = within(10.0, path.read_text)     # None if the file system hangs
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def within(seconds: float, work: Callable[[], Result | None]) -> Result | None:
    """Calls a function in a thread; returns after `seconds` even if it has not returned.

    Returns:
      What it has returned; None if it takes longer or raises an exception.
    """
    results: list[Result | None] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None
