"""Convolutions and max pooling on a CPU of a batch without examples, which oneDNN gets wrong.

    apply()      # before the functions that compute on them are traced
    with as_tensorflow_does(): …    # but not those that are traced here

TensorFlow gives such a batch to a replica that has no more data when others have. oneDNN's
convolutions of it have the shape of their input, with which the next layer fails, and its gradient
of max pooling ends the process. `tests/upstream/test_onednn_empty_batches.py` tells when upstream
has fixed it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_nn_ops

_CONVOLUTIONS = ("conv2d", "conv3d", "depthwise_conv2d_native")
_POOLS = ("max_pool", "max_pool3d")

Operation = Callable[..., tf.Tensor]

_is_left_alone = False


@functools.cache
def apply() -> None:
    """Lets the functions that are traced from now on compute on empty batches.

    Of no effect where there is a GPU, which does so by itself.
    """
    if tf.config.list_physical_devices("GPU"):
        return
    for names, mend in ((_CONVOLUTIONS, _with_right_shape), (_POOLS, _of_an_example)):
        for name in names:
            # Keras calls TensorFlow's functions, and these and their gradients call this one.
            setattr(gen_nn_ops, name, mend(getattr(gen_nn_ops, name)))


@contextlib.contextmanager
def as_tensorflow_does() -> Iterator[None]:
    """Leaves what is traced meanwhile as it is: a model that is served never sees such a batch."""
    global _is_left_alone
    _is_left_alone = True
    try:
        yield
    finally:
        _is_left_alone = False


def _with_right_shape(convolution: Operation) -> Operation:
    """`convolution`, whose result has the shape that TensorFlow infers; nothing is copied."""
    of_an_example = _of_an_example(convolution)

    @functools.wraps(convolution)
    def call(input: tf.Tensor, *arguments: Any, **options: Any) -> tf.Tensor:
        if not _may_be_empty(input):
            return convolution(input, *arguments, **options)
        if not input.shape[1:].is_fully_defined():
            return of_an_example(input, *arguments, **options)
        result = convolution(input, *arguments, **options)
        # Written so that Grappler cannot simplify the reshape away.
        is_found = [1] + [0] * (result.shape.rank - 1)
        reshaped = tf.reshape(result, tf.shape(result) * is_found + [0, *result.shape[1:]])
        reshaped.set_shape(result.shape)
        return reshaped

    return call


def _of_an_example(operation: Operation) -> Operation:
    """`operation`, which computes on one example of zeros in place of none."""

    @functools.wraps(operation)
    def call(input: tf.Tensor, *arguments: Any, **options: Any) -> tf.Tensor:
        if not _may_be_empty(input):
            return operation(input, *arguments, **options)
        examples = tf.shape(input)[0]
        lacks = tf.cast(examples == 0, tf.int32)
        paddings = [[0, lacks], *([0, 0] for _ in input.shape[1:])]
        return operation(tf.pad(input, paddings), *arguments, **options)[:examples]

    return call


def _may_be_empty(tensor: tf.Tensor) -> bool:
    if _is_left_alone or tf.executing_eagerly():
        return False
    return bool(tensor.shape.rank) and tensor.shape[0] is None
