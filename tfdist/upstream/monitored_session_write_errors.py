"""Makes a TF1 session fail if it cannot write a file.

TensorFlow raises OutOfRangeError both for a file that is too large and for the end of the input. A
session handles it as the end of the input and ends without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper


def apply(write_error: Callable[[BaseException], object]) -> None:
    """Makes a TF1 session end with the error of a failed write.

    Args:
      write_error: what an exception says of a file that could not be written; None of others.
    """

    def exit_with_error(
        own: Callable[..., Any], session: Any, kind: Any, error: BaseException | None, trace: Any
    ) -> Any:
        if error is not None and write_error(error) is not None:
            kind = tf.errors.UnknownError
        return own(session, kind, error, trace)

    apply_wrapper(tf.compat.v1.train.MonitoredSession, "__exit__", exit_with_error)
