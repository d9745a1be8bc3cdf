"""Finds the variable inside TensorFlow's and Keras's wrappers of variables.

    innermost(variable).read_value()

Parameter servers wrap variables to cache them, and the mixed precision of Keras 2 to cast them. A
wrapper has the methods of a variable, but its conversion to a tensor uses those of the one inside.
"""

from __future__ import annotations

import tensorflow as tf


def innermost(variable: tf.Variable) -> tf.Variable:
    """The variable inside all wrappers of `variable`; without a wrapper, `variable` itself."""
    while True:
        # Other attributes of a wrapper are those of the variable inside.
        inside = vars(variable).get("_v", vars(variable).get("_variable"))
        if inside is None:
            return variable
        variable = inside
