"""Makes the server of TensorFlow 2.16 to 2.20 respect the log level.

    release = hold()        # before a server starts
    release()

These versions log some messages through Abseil, and they give Abseil's log no level.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.compat.versions import version_of
from tfdist.process import log_level


def hold() -> Callable[[], None]:
    """Hides messages below the log level, if this TensorFlow does not.

    Returns:
      A function that ends this; otherwise it ends with the process.
    """
    if (2, 16) <= version_of(tf.__version__) <= (2, 20):
        return log_level.hold()
    return lambda: None
