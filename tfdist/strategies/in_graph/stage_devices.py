"""Chooses devices for operations that no layer places, such as those of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.strategies.captures import eager_captures


def following_inputs(ranks: Mapping[str, int]) -> Callable[[tf.Operation], str]:
    """Returns a function for `tf.compat.v1.device` that places an operation with its inputs.

    Of several devices it chooses the one of the highest rank. Scalars have no influence, because
    they are cheap to send.

    Args:
      ranks: by device, its rank. Inputs on other devices have no influence.
    """
    variables: dict[Any, Any] = {}

    def place(tensor: tf.Tensor) -> str:
        if tensor.dtype == tf.resource:
            if tensor.ref() not in variables:
                variables.update(eager_captures(tensor.graph))
            variable = variables.get(tensor.ref())
            return "" if variable is None else str(variable.device)
        if tensor.shape.rank == 0:
            return ""
        # TensorFlow runs these with the variable, and ignores the device function.
        is_read = tensor.op.type in ("ReadVariableOp", "ResourceGather")
        return place(tensor.op.inputs[0]) if is_read else str(tensor.device)

    def device_of(operation: tf.Operation) -> str:
        if operation.device:
            return str(operation.device)
        devices = set(map(place, operation.inputs))
        return max(devices & ranks.keys(), key=lambda device: ranks[device], default="")

    return device_of
