"""Makes additions to shared Keras 3 variables, such as those of metrics, atomic.

    add_in_one_operation(model.metrics_variables)    # before train_function is traced

Keras 3 adds by reading, adding and assigning, even in `assign_add`. On a parameter server, this
loses an addition that another worker makes at the same time. If replicas share a variable that sums
their assignments, it counts the old value once per replica.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.compat.additions import addend
from tfdist.compat.replaced import replace


def add_in_one_operation(variables: Iterable[Any]) -> bool:
    """Replaces the assignment of `variable + x` to a variable with TensorFlow's `assign_add`.

    Applies to functions that are traced after this call.

    Args:
      variables: Keras 3 variables.

    Returns:
      Whether this call changed any of them.
    """
    others = [variable for variable in variables if "_direct_assign" not in vars(variable)]
    for variable in others:
        replace(variable, "_direct_assign", partial(_assign, variable._value))
    return bool(others)


def _assign(variable: tf.Variable, value: Any) -> None:
    value = tf.cast(value, variable.dtype)
    added = addend(value, variable) if tf.is_symbolic_tensor(value) else None
    if added is None:
        variable.assign(value)
    else:
        variable.assign_add(tf.broadcast_to(added, variable.shape))
