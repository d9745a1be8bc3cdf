"""Autotuning of the iterators with which TensorFlow feeds the devices of its strategies.

The autotuning thread sleeps for ever longer, and the end of an iterator waits for it. The outermost
dataset of these iterators is TensorFlow's own, so the options of a user's dataset do not reach it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops


@functools.cache
def apply() -> None:
    """Turns autotuning off in them."""
    multi_device_iterator_ops._create_device_dataset = _iterators_without_autotune(
        multi_device_iterator_ops._create_device_dataset
    )


def _iterators_without_autotune(create_device_dataset: Callable[..., Any]) -> Callable[..., Any]:
    """`without_autotune` for the iterators with which TensorFlow feeds its strategies' devices.

    Their outermost dataset is TensorFlow's own, so that no option of the user's dataset reaches it.
    """

    @functools.wraps(create_device_dataset)
    def call(*args: Any, **kwargs: Any) -> tf.data.Dataset:
        options = tf.data.Options()
        options.autotune.enabled = False
        # There is nothing to optimize in it, and TensorFlow would warn that it cannot.
        options.experimental_optimization.apply_default_optimizations = False
        return create_device_dataset(*args, **kwargs).with_options(options)

    return call
