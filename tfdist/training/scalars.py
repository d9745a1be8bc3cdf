"""The metrics of an epoch as TensorBoard's scalars; a metric can be an array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def scalars(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """The values of an epoch's logs by name; `name/0`, `name/1`, … for the elements of an array."""
    found: dict[str, float] = {}
    for name, value in (logs or {}).items():
        array = np.asarray(value)
        if array.ndim:
            found |= {f"{name}/{index}": float(each) for index, each in enumerate(array.flat)}
        else:
            found[name] = float(array)
    return found
