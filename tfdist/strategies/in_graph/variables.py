"""Creates variables on the workers, and moves them to the stages that they belong to.

The stages of a model are known only when it is built. Until then each new variable goes to the
worker with the fewest bytes, so that no process needs memory for the whole model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import all_replaced
from tfdist.strategies.sizes import bytes_of
from tfdist.upstream.wrapped_variables import innermost

# Scalars, such as the step counter, the learning rate and metrics, stay with the client.
_MIN_ELEMENTS = 2


@contextmanager
def spread(devices: Sequence[str]) -> Iterator[None]:
    """In this block, creates each variable on the device with the fewest bytes of variables."""
    loads = dict.fromkeys(devices, 0)

    def create(next_creator: Any, **options: Any) -> tf.Variable:
        value, shape = options["initial_value"], options.get("shape")
        if shape is None and not callable(value):
            shape = np.shape(value)
        elements = tf.TensorShape(shape).num_elements()
        if elements is not None and elements < _MIN_ELEMENTS:
            return next_creator(**options)
        device = min(loads, key=lambda name: loads[name])
        with tf.device(device):
            variable = next_creator(**options)
        loads[device] += bytes_of(variable)
        return variable

    with tf.variable_creator_scope(create):
        yield


def reading(values: Iterable[tuple[tf.Variable, tf.Tensor]]) -> AbstractContextManager[None]:
    """In this block, reading a variable returns the given tensor instead."""
    return all_replaced((each, "value", lambda value=value: value) for each, value in values)


def tensorflow_variable(variable: Any) -> tf.Variable:
    """TensorFlow's variable inside a variable of Keras 3 or of a mixed-precision layer."""
    (own,) = keras_compat.as_tensorflow([variable])
    return innermost(own)


def move(variable: tf.Variable, device: str) -> None:
    """Moves the value of a variable to a device; all references to the variable remain valid."""
    if variable.device.endswith(device):
        return
    with tf.device(device):
        moved = tf.Variable(variable.read_value(), trainable=variable.trainable)
    # TensorFlow has no public way to give a variable another place.
    variable._handle = moved.handle
