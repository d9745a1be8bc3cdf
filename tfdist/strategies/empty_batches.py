"""Convolutions and max pooling on a CPU of a batch without examples, which oneDNN gets wrong.

    compute_on_empty_batches()      # before the functions that compute on them are traced

TensorFlow gives such a batch to a replica that has no more data when others have. oneDNN's
convolutions of it have the shape of their input, with which the next layer fails, and its gradient
of max pooling ends the process. `tests/test_empty_batches.py` will tell when upstream has mended
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_nn_ops

_CONVOLUTIONS = ("conv2d", "conv3d", "depthwise_conv2d_native")
_POOLS = ("max_pool", "max_pool3d")

Operation = Callable[..., tf.Tensor]


@functools.cache
def compute_on_empty_batches() -> None:
    """Lets the functions that are traced from now on compute on empty batches."""
    for names, mend in ((_CONVOLUTIONS, _with_right_shape), (_POOLS, _of_an_example)):
        for name in names:
            # Keras calls TensorFlow's functions, and these and their gradients call this one.
            setattr(gen_nn_ops, name, mend(getattr(gen_nn_ops, name)))


def _with_right_shape(convolution: Operation) -> Operation:
    """`convolution`, whose result has the shape that TensorFlow infers; nothing is copied."""

    @functools.wraps(convolution)
    def call(*arguments: Any, **options: Any) -> tf.Tensor:
        result = convolution(*arguments, **options)
        if not _may_be_empty(result):
            return result
        # In words in which TensorFlow's optimizer does not see that this should change nothing.
        is_found = [int(size is None) for size in result.shape]
        known = [size or 0 for size in result.shape]
        reshaped = tf.reshape(result, tf.shape(result) * is_found + known)
        reshaped.set_shape(result.shape)
        return reshaped

    return call


def _of_an_example(pool: Operation) -> Operation:
    """`pool`, which computes on one example of zeros in place of none."""

    @functools.wraps(pool)
    def call(input: tf.Tensor, *arguments: Any, **options: Any) -> tf.Tensor:
        if not _may_be_empty(input):
            return pool(input, *arguments, **options)
        examples = tf.shape(input)[0]
        lacks = tf.cast(examples == 0, tf.int32)
        paddings = [[0, lacks], *([0, 0] for _ in input.shape[1:])]
        return pool(tf.pad(input, paddings), *arguments, **options)[:examples]

    return call


def _may_be_empty(tensor: tf.Tensor) -> bool:
    return not tf.executing_eagerly() and bool(tensor.shape.rank) and tensor.shape[0] is None
