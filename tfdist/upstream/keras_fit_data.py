"""Finds what the user has passed to `fit`; Keras does not tell its callbacks."""

from __future__ import annotations

import inspect
from typing import Any


def data_of_fit(model: Any) -> Any:
    """The argument `x` of the `fit` that runs; None outside of `fit`."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            return frame.f_locals.get("x")
        frame = frame.f_back
    return None
