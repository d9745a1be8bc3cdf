"""Calls functions with a time limit.

text = within(10.0, path.read_text)           # None if the file system hangs
wait_until(path.exists, 5.0, pause=0.1)       # False if it does not in this time
"""

from __future__ import annotations

import threading
import time
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


def wait_until(condition: Callable[[], bool], seconds: float, *, pause: float) -> bool:
    """Calls a function again and again until it returns True.

    Args:
      condition: called at least once.
      seconds: how long to wait at most.
      pause: the seconds between two calls.

    Returns:
      Whether it has returned True.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True
