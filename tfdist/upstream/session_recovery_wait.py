"""The wait of a TF1 session for its chief: 30 seconds at a time, for which there is no argument."""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.python.training import session_manager

_SECONDS = 1


@functools.cache
def apply() -> None:
    """Makes it a second at a time."""
    init = session_manager.SessionManager.__init__

    @functools.wraps(init)
    def initialize(*args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("recovery_wait_secs", _SECONDS)
        init(*args, **kwargs)

    session_manager.SessionManager.__init__ = initialize
