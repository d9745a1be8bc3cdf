"""The sizes of variables and tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def bytes_of(variable: Any) -> int:
    """The bytes of a variable or tensor; 0 if its size is unknown. Counts a string as 16 bytes."""
    return (variable.shape.num_elements() or 0) * (tf.as_dtype(variable.dtype).size or 16)
