"""Devices for the operations that no layer has placed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tensorflow as tf


def following_inputs(ranks: Mapping[str, int]) -> Callable[[tf.Operation], str]:
    """A function for `tf.compat.v1.device`: an operation runs where its inputs are computed.

    Of several devices it chooses the one of the highest rank. Scalars have no influence, since
    they are cheap to send.

    Args:
      ranks: by device, its rank. Inputs on other devices have no influence.
    """

    def device_of(operation: tf.Operation) -> str:
        if operation.device:
            return str(operation.device)
        devices = {tensor.device for tensor in operation.inputs if tensor.shape.rank != 0}
        return max(devices & ranks.keys(), key=lambda device: ranks[device], default="")

    return device_of
