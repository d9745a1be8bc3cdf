"""Devices for the operations that no layer has placed, such as those of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf


def following_inputs(ranks: Mapping[str, int]) -> Callable[[tf.Operation], str]:
    """A function for `tf.compat.v1.device`: an operation runs where its inputs are.

    Of several devices it chooses the one of the highest rank. Scalars have no influence, because
    they are cheap to send.

    Args:
      ranks: by device, its rank. Inputs on other devices have no influence.
    """
    devices_of_variables: dict[int, str] = {}

    def place(tensor: tf.Tensor) -> str:
        if tensor.dtype != tf.resource:
            return "" if tensor.shape.rank == 0 else str(tensor.device)
        if id(tensor) not in devices_of_variables:
            devices_of_variables.update(_captured(tensor.graph))
        return devices_of_variables.get(id(tensor), "")

    def device_of(operation: tf.Operation) -> str:
        if operation.device:
            return str(operation.device)
        devices = set(map(place, operation.inputs))
        return max(devices & ranks.keys(), key=lambda device: ranks[device], default="")

    return device_of


def _captured(graph: tf.Graph) -> dict[int, str]:
    """The devices of the variables that a function uses, by the id of the tensor that it reads."""
    found: dict[int, str] = {}
    outer = getattr(graph, "outer_graph", None)
    if outer is not None:
        found = _captured(outer)
    for external, internal in getattr(graph, "captures", ()):
        if internal.dtype == tf.resource:
            found[id(internal)] = found.get(id(external), "") or str(external.device)
    return found
