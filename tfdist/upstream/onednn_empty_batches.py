"""Makes convolutions and max pooling work on empty batches with oneDNN on a CPU.

    apply()                         # before tracing functions
    with as_tensorflow_does(): …    # turns it off for functions that are traced here

A replica gets an empty batch if it has no more data but others do. For an empty batch, oneDNN's
convolutions return the shape of their input, so the next layer fails, and its gradient of max
pooling crashes. `tests/upstream/test_onednn_empty_batches.py` fails when upstream has fixed this.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_nn_ops

from tfdist.upstream.wrapping import apply_wrapper

_CONVOLUTIONS = ("conv2d", "conv3d", "depthwise_conv2d_native")
_POOLS = ("max_pool", "max_pool3d")

Operation = Callable[..., tf.Tensor]

_is_disabled = False


def apply() -> None:
    """Makes functions that are traced after this call work on empty batches.

    Does nothing on a machine with a GPU, because GPU kernels handle empty batches.
    """
    if tf.config.list_physical_devices("GPU"):
        return
    for names, fix in ((_CONVOLUTIONS, _with_inferred_shape), (_POOLS, _on_zeros)):
        for name in names:
            # Keras calls TensorFlow's functions, which call these; so do their gradients.
            apply_wrapper(gen_nn_ops, name, fix)


@contextlib.contextmanager
def as_tensorflow_does() -> Iterator[None]:
    """Turns the workaround off while tracing a model for serving, which gets no empty batches."""
    global _is_disabled
    _is_disabled = True
    try:
        yield
    finally:
        _is_disabled = False


def _with_inferred_shape(
    convolution: Operation, input: tf.Tensor, *arguments: Any, **options: Any
) -> tf.Tensor:
    """Reshapes the result of `convolution` to the shape that TensorFlow infers, without a copy."""
    if _may_be_empty(input) and not input.shape[1:].is_fully_defined():
        return _on_zeros(convolution, input, *arguments, **options)
    result = convolution(input, *arguments, **options)
    if not _may_be_empty(input):
        return result
    # Written so that Grappler cannot simplify the reshape away.
    is_batch = [1] + [0] * (result.shape.rank - 1)
    reshaped = tf.reshape(result, tf.shape(result) * is_batch + [0, *result.shape[1:]])
    reshaped.set_shape(result.shape)
    return reshaped


def _on_zeros(operation: Operation, input: tf.Tensor, *arguments: Any, **options: Any) -> tf.Tensor:
    """Makes `operation` compute on one example of zeros if the batch is empty."""
    if not _may_be_empty(input):
        return operation(input, *arguments, **options)
    examples = tf.shape(input)[0]
    padding = tf.cast(examples == 0, tf.int32)
    paddings = [[0, padding], *([0, 0] for _ in input.shape[1:])]
    return operation(tf.pad(input, paddings), *arguments, **options)[:examples]


def _may_be_empty(tensor: tf.Tensor) -> bool:
    if _is_disabled or tf.executing_eagerly():
        return False
    return bool(tensor.shape.rank) and tensor.shape[0] is None
