"""Shortens the polling interval of 30 seconds of a TF1 session that waits for its chief."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper

_SECONDS = 1


def apply() -> None:
    """Sets the interval to one second."""
    apply_wrapper(tf.compat.v1.train.SessionManager, "__init__", _initialize)


def _initialize(init: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    init(*args, **{"recovery_wait_secs": _SECONDS, **kwargs})
