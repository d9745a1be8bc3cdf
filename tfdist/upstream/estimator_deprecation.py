"""Silences the deprecation warning that each function of `tf.estimator` logs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tensorflow.python.util import deprecation


def apply() -> None:
    """Turns deprecation warnings off."""
    deprecation._PRINT_DEPRECATION_WARNINGS = False


def silence() -> AbstractContextManager[Any]:
    """A context manager that turns them off."""
    context: AbstractContextManager[Any] = deprecation.silence()
    return context
