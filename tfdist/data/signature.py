"""Whether a function of the user takes the argument that tfdist offers it.

takes_argument(build_model, "job")      # else call it without
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def takes_argument(function: Callable[..., Any], *names: str) -> bool:
    """Whether a function has a positional parameter for the argument.

    A parameter with a default value is the user's own, such as a batch size, unless its name is one
    of `names`.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return True  # A function of an extension module has no signature.
    return any(
        each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL)
        and (each.default is each.empty or each.name in names)
        for each in parameters
    )
