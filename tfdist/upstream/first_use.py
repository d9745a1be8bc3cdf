"""Tells which line of a script used TensorFlow first, if that was too early.

    first_use.apply()               # when TensorFlow is imported
    with first_use.explained():     # its devices and its servers are set up here
        ...

An operation, or a list of logical devices, initializes TensorFlow's context. After that, the
context has no more devices and no collective operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorflow.python.eager import context

from tfdist.errors import UsageError
from tfdist.process.user_code import calling_line

_found: list[str] = []


def apply() -> None:
    """Records the line of the first use of TensorFlow in this process."""
    initialize = context.Context.ensure_initialized

    def ensure_initialized(self: context.Context) -> None:
        context.Context.ensure_initialized = initialize
        _found.append(calling_line())
        initialize(self)

    context.Context.ensure_initialized = ensure_initialized


@contextmanager
def explained() -> Iterator[None]:
    """Converts the errors of a context that was initialized before this block.

    Raises:
      UsageError: TensorFlow refuses a setting for that reason.
    """
    earlier = [*_found]
    try:
        yield
    except RuntimeError as error:
        if not earlier:
            raise
        raise UsageError(
            "TensorFlow",
            received=f"its first use before tfdist.init, in {earlier[0]}",
            accepted="none before it: tfdist sets up devices and connections first",
            remedy="Move the line into a function that is called later, such as build_model.",
        ) from error
