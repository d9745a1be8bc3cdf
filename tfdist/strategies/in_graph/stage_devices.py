"""Devices for the operations that no layer has placed, such as those of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


def following_inputs(ranks: Mapping[str, int]) -> Callable[[tf.Operation], str]:
    """A function for `tf.compat.v1.device`: an operation runs where its inputs are.

    Of several devices it chooses the one of the highest rank. Scalars have no influence, because
    they are cheap to send.

    Args:
      ranks: by device, its rank. Inputs on other devices have no influence.
    """
    devices_of_variables: dict[Any, str] = {}

    def place(tensor: tf.Tensor) -> str:
        if tensor.dtype == tf.resource:
            if tensor.ref() not in devices_of_variables:
                devices_of_variables.update(_captured(tensor.graph))
            return devices_of_variables.get(tensor.ref(), "")
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


def _captured(graph: tf.Graph) -> dict[Any, str]:
    """The devices of the variables that a function uses, by the tensor through which it does."""
    outer = getattr(graph, "outer_graph", None)
    found = {} if outer is None else _captured(outer)
    for external, internal in getattr(graph, "captures", ()):
        if internal.dtype == tf.resource:
            found[internal.ref()] = found.get(external.ref()) or str(external.device)
    return found
