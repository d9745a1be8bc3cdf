"""Turns off autotuning in the iterators with which TensorFlow feeds a strategy's devices.

The autotuning thread sleeps for longer and longer intervals, and the end of an iterator waits for
it. The outermost dataset of these iterators is TensorFlow's own, so the options of the user's
dataset do not apply to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Turns autotuning off in iterators that are created after this call."""
    apply_wrapper(multi_device_iterator_ops, "_create_device_dataset", _create_without_autotune)


def _create_without_autotune(create: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    options = tf.data.Options()
    options.autotune.enabled = False
    # Otherwise TensorFlow warns that it cannot optimize this dataset.
    options.experimental_optimization.apply_default_optimizations = False
    return create(*args, **kwargs).with_options(options)
