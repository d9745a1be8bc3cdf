"""The warning of each function of `tf.estimator` that Keras is to be used instead."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tensorflow.python.util import deprecation


def apply() -> None:
    """Turns deprecation warnings off."""
    deprecation._PRINT_DEPRECATION_WARNINGS = False


def silence() -> AbstractContextManager[Any]:
    """Turns them off while the block runs."""
    context: AbstractContextManager[Any] = deprecation.silence()
    return context
