"""Turns off autotuning in the iterators with which TensorFlow feeds a strategy's devices.

The autotuning thread sleeps for longer and longer intervals, and the end of an iterator waits for
it. The outermost dataset of these iterators is TensorFlow's own, so the options of the user's
dataset do not apply to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops


@functools.cache
def apply() -> None:
    """Turns autotuning off in iterators that are created after this call."""
    multi_device_iterator_ops._create_device_dataset = _iterators_without_autotune(
        multi_device_iterator_ops._create_device_dataset
    )


def _iterators_without_autotune(create_device_dataset: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create_device_dataset)
    def call(*args: Any, **kwargs: Any) -> tf.data.Dataset:
        options = tf.data.Options()
        options.autotune.enabled = False
        # Otherwise TensorFlow warns that it cannot optimize this dataset.
        options.experimental_optimization.apply_default_optimizations = False
        return create_device_dataset(*args, **kwargs).with_options(options)

    return call
