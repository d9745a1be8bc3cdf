"""Variables of Keras 3 to which several replicas add, such as those of its metrics.

    add_in_one_operation(model.metrics_variables)    # before train_function is traced

Keras 3 adds by reading, adding and assigning, in `assign_add`, too. What another worker adds
meanwhile to a variable on a parameter server is lost; and where replicas share a variable that sums
what they assign, the old value is counted for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import tensorflow as tf


def add_in_one_operation(variables: Iterable[Any]) -> bool:
    """Lets the assignment of a sum with the variable's own value be TensorFlow's `assign_add`.

    It holds for functions that are traced from now on.

    Args:
      variables: Keras 3's.

    Returns:
      Whether it was otherwise for some of them.
    """
    others = [variable for variable in variables if "_direct_assign" not in vars(variable)]
    for variable in others:
        variable._direct_assign = partial(_assign, variable._value)
    return bool(others)


def _assign(variable: tf.Variable, value: Any) -> None:
    value = tf.cast(value, variable.dtype)
    added = _added(variable, value)
    if added is None:
        variable.assign(value)
    else:
        variable.assign_add(tf.broadcast_to(added, variable.shape))


def _added(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor | None:
    """The other summand where `value` is a sum of the variable's value and another."""
    if not tf.is_symbolic_tensor(value) or value.op.type != "AddV2":
        return None
    handle = value.graph.capture(variable.handle)
    first, second = value.op.inputs
    for summand, other in ((first, second), (second, first)):
        read = summand.op
        if read.type == "ReadVariableOp" and read.inputs[0] is handle:
            return other
    return None
