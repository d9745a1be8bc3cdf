"""Makes SGD of Keras 2 without momentum update the weights by the gradient alone.

apply()     # before an optimizer updates weights

Keras 2 writes each update to the momentum of the variable, which is not used without momentum, and
adds that to the variable. All workers of asynchronous parameter servers share it: when two of them
update a variable at the same time, the update of one is lost or made twice. A table is read and
written as a whole, although the batch has a few of its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Changes Keras's class; a second call changes nothing."""
    apply_wrapper(tf.keras.optimizers.SGD, "update_step", _update)


def _update(update: Callable[..., None], optimizer: Any, gradient: Any, variable: Any) -> None:
    if not (isinstance(optimizer.momentum, int | float) and optimizer.momentum == 0):
        update(optimizer, gradient, variable)
        return
    rate = tf.cast(optimizer.learning_rate, variable.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        variable.scatter_add(tf.IndexedSlices(-gradient.values * rate, gradient.indices))
    else:
        variable.assign_add(-gradient * rate)
