"""Keeps NumPy arrays out of the functions that make datasets.

    with dataset_arrays.as_inputs():
        make = tf.function(dataset_fn).get_concrete_function(context)

In a function, `Dataset.from_tensor_slices` and `from_tensors` make constants of their arrays.
TensorFlow sends every function of a job to all of its tasks, and a function may not have more than
2 GB. In this context the arrays become tensors outside of the function, which are sent only to the
task that calls it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.replaced import all_replaced

_METHODS = ("from_tensor_slices", "from_tensors")
# Smaller arrays are not worth a message of their own.
_MIN_BYTES = 1 << 16


def as_inputs() -> AbstractContextManager[None]:
    """In this block, datasets of arrays capture them as tensors. Not safe for several threads."""
    tensors: dict[int, tuple[Any, tf.Tensor]] = {}

    def outside(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.nbytes < _MIN_BYTES:
            return value
        if id(value) not in tensors:
            with tf.init_scope():
                # Keeps the array, whose `id` another one would get.
                tensors[id(value)] = value, tf.constant(value)
        return tensors[id(value)][1]

    def capturing(make: Callable[..., tf.data.Dataset]) -> Any:
        @tf.autograph.experimental.do_not_convert
        @functools.wraps(make)
        def call(values: Any, *args: Any, **kwargs: Any) -> tf.data.Dataset:
            return make(tf.nest.map_structure(outside, values), *args, **kwargs)

        return staticmethod(call)

    kind = tf.data.Dataset
    return all_replaced((kind, name, capturing(getattr(kind, name))) for name in _METHODS)
