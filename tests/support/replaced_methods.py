"""Finds what tfdist has replaced on the objects of Keras and TensorFlow."""

from __future__ import annotations

import functools
import gc
from typing import Any

#: The packages whose objects a training uses.
OTHERS = ("keras", "tf_keras", "tensorflow")


def still_replaced() -> list[str]:
    """The methods of objects of Keras and TensorFlow that are functions of tfdist.

    All objects of this process count: models, layers, optimizers, metrics, variables, datasets.
    """
    found = []
    for each in gc.get_objects():
        # `isinstance` would ask the object itself, which may be the proxy of a lost one.
        if not _is_of(type(each), *OTHERS) or not hasattr(each, "__dict__"):
            continue
        found += [
            f"{type(each).__name__}.{name}"
            for name, value in list(vars(each).items())
            if callable(getattr(type(each), name, None))
            and name != "python_function"  # Of TensorFlow's options, whose default is a function.
            and _is_of(_function_of(value), "tfdist")
        ]
    return sorted(found)


def _is_of(value: Any, *packages: str) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] in packages


def _function_of(value: Any) -> Any:
    while isinstance(value, functools.partial):
        value = value.func
    return value
