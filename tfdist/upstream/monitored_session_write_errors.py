"""Makes a TF1 session fail if it cannot write a file.

TensorFlow raises OutOfRangeError both for a file that is too large and for the end of the input. A
session handles it as the end of the input and ends without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper


def apply(is_write_error: Callable[[BaseException], bool]) -> None:
    """Makes a TF1 session end with the error of a failed write.

    Args:
      is_write_error: whether an exception means that a file could not be written.
    """

    def exit_with_error(
        own: Callable[..., Any], session: Any, kind: Any, error: BaseException | None, trace: Any
    ) -> Any:
        if error is not None and is_write_error(error):
            kind = tf.errors.UnknownError
        return own(session, kind, error, trace)

    apply_wrapper(tf.compat.v1.train.MonitoredSession, "__exit__", exit_with_error)
