"""Makes layers of Keras 3 read the rows of a table that a batch has, and no others.

apply()     # before the first step

Keras 3 reads the whole variable and then takes the rows of it. On a parameter server, each step
would send the whole table to its worker. Keras 2 gathers the rows where the table is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Changes Keras's function; a second call changes nothing."""
    apply_wrapper(importlib.import_module("keras.src.backend.tensorflow.numpy"), "take", _take)


def _take(take: Callable[..., Any], x: Any, indices: Any, axis: int | None = None) -> Any:
    if not isinstance(x, tf.keras.Variable) or axis != 0 or isinstance(indices, tf.SparseTensor):
        return take(x, indices, axis=axis)
    variable = x._value  # Within autocast, its `value` is a cast of the whole table.

    def rows(places: tf.Tensor) -> tf.Tensor:
        # As Keras: a negative index counts from the end.
        places = tf.where(places < 0, places + tf.cast(variable.shape[0], places.dtype), places)
        return x._maybe_autocast(tf.gather(variable, places))

    if isinstance(indices, tf.RaggedTensor):
        return indices.with_flat_values(rows(indices.flat_values))
    return rows(tf.convert_to_tensor(indices))
