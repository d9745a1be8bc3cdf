"""Converts a method as AutoGraph would if Keras called it itself.

    replace(model, "train_step", lambda data: converted(own)(data))

AutoGraph does not look into the functions of a library, and its public API converts a function in
any case, not only where the caller is converted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def converted(method: Callable[..., Any]) -> Callable[..., Any]:
    """Converts a method if AutoGraph converts the function being traced; call it in that function.

    Keras 2 does the same for a method that `model.train_step` replaces.
    """
    autograph: Any = tf.__internal__.autograph
    found: Callable[..., Any] = autograph.tf_convert(method, autograph.control_status_ctx())
    return found
