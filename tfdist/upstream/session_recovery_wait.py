"""Shortens the polling interval of a TF1 session that waits for its chief, which is 30 seconds."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

_SECONDS = 1


@functools.cache
def apply() -> None:
    """Sets the interval to one second."""
    manager = tf.compat.v1.train.SessionManager
    init = manager.__init__

    @functools.wraps(init)
    def initialize(*args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("recovery_wait_secs", _SECONDS)
        init(*args, **kwargs)

    manager.__init__ = initialize
