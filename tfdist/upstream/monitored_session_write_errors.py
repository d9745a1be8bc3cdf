"""A TF1 session that cannot write a file ends as if its input had ended.

TensorFlow has one class for a file that is too large and for the end of the input, OutOfRangeError,
upon which a session ends without an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.training import monitored_session


@functools.cache
def apply(is_write_error: Callable[[BaseException], bool]) -> None:
    """Makes such a session end with an error.

    Args:
      is_write_error: whether an exception means that a file could not be written.
    """
    leave = monitored_session._MonitoredSession.__exit__

    @functools.wraps(leave)
    def leave_session(self: Any, kind: Any, error: BaseException | None, trace: Any) -> Any:
        if error is not None and is_write_error(error):
            kind = tf.errors.UnknownError
        return leave(self, kind, error, trace)

    monitored_session._MonitoredSession.__exit__ = leave_session
