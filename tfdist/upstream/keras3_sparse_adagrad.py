"""Makes Adagrad of Keras 3 update the rows of a table that a batch has, and read no others.

apply()     # before an optimizer updates weights

The gradient of a table has the rows of a batch. Keras 3 divides them by the root of the whole
accumulator, so a step takes as long as the table is large. Keras 2 reads their rows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Changes Keras's class; a second call changes nothing."""
    apply_wrapper(tf.keras.optimizers.Adagrad, "update_step", _update_rows)


def _update_rows(
    update: Callable[..., None], optimizer: Any, gradient: Any, variable: Any, learning_rate: Any
) -> None:
    if not isinstance(gradient, tf.IndexedSlices):
        update(optimizer, gradient, variable, learning_rate)
        return

    def of_rows(values: tf.Tensor) -> tf.IndexedSlices:
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)

    accumulator = optimizer._accumulators[optimizer._get_variable_index(variable)]
    values = tf.cast(gradient.values, variable.dtype)
    optimizer.assign_add(accumulator, of_rows(tf.square(values)))
    (own,) = keras_compat.as_tensorflow([accumulator])
    roots = tf.sqrt(tf.gather(own, gradient.indices) + optimizer.epsilon)
    rate = tf.cast(learning_rate, variable.dtype)
    optimizer.assign_sub(variable, of_rows(rate * values / roots))
