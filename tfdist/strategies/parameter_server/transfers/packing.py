"""Packs small tensors into few messages, because a message costs more than a small tensor's bytes.

for places in packs_of(tensors):
    packed = pack([tensors[place] for place in places])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.sizes import bytes_of

#: A larger tensor is sent separately: copying it twice would cost more than another message.
_SMALL_BYTES = 256 << 10
#: The size at which a pack is closed, because a pack waits for the last of its tensors.
_PACK_BYTES = 4 << 20

_DTYPES = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64})


def pack(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
    """Concatenates tensors of one dtype and of static shapes; returns shape [elements]."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def unpack(packed: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Splits the result of `pack` into tensors with the shapes of `like`."""
    parts = tf.split(packed, [tensor.shape.num_elements() for tensor in like])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def packs_of(tensors: Sequence[tf.Tensor], devices: Sequence[str] | None = None) -> list[list[int]]:
    """Groups tensors into packs; returns the indices of the tensors of each pack.

    A pack contains small tensors of the same dtype, in their order. A tensor that is large, not of
    floating point, or of a dynamic shape is alone.

    Args:
      tensors: the tensors.
      devices: where each tensor is sent; None if all are sent to the same device.
    """
    packs: list[list[int]] = []
    last: dict[Any, list[int]] = {}
    remaining: dict[Any, int] = {}
    for place, tensor in enumerate(tensors):
        if not _is_small(tensor):
            packs.append([place])
            continue
        kind = tensor.dtype, devices and devices[place]
        if remaining.get(kind, 0) <= 0:
            last[kind], remaining[kind] = [], _PACK_BYTES
            packs.append(last[kind])
        last[kind].append(place)
        remaining[kind] -= bytes_of(tensor)
    return packs


def _is_small(tensor: tf.Tensor) -> bool:
    if tensor.dtype not in _DTYPES or not tensor.shape.is_fully_defined():
        return False
    return bytes_of(tensor) <= _SMALL_BYTES
