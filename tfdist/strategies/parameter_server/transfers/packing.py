"""Packs small tensors into few messages, because a message costs more than a small tensor's bytes.

results = in_packs(send, tensors)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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


def in_packs(
    send: Callable[[list[tf.Tensor]], list[tf.Tensor]], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Applies `send` to tensors, in one call per pack.

    A pack contains small tensors of the same dtype, in their order. A tensor that is large, not of
    floating point, or of a dynamic shape is sent alone.

    Args:
      send: takes the tensors of a pack and returns one result for each.
      tensors: the tensors.

    Returns:
      The result for each tensor.
    """
    together: list[list[int]] = []
    last: dict[tf.DType, list[int]] = {}
    remaining: dict[tf.DType, int] = {}
    for place, tensor in enumerate(tensors):
        if not _is_small(tensor):
            together.append([place])
            continue
        if remaining.get(tensor.dtype, 0) <= 0:
            last[tensor.dtype], remaining[tensor.dtype] = [], _PACK_BYTES
            together.append(last[tensor.dtype])
        last[tensor.dtype].append(place)
        remaining[tensor.dtype] -= bytes_of(tensor)
    results: dict[int, tf.Tensor] = {}
    for places in together:
        results.update(zip(places, send([tensors[place] for place in places]), strict=True))
    return [results[place] for place in range(len(tensors))]


def _is_small(tensor: tf.Tensor) -> bool:
    if tensor.dtype not in _DTYPES or not tensor.shape.is_fully_defined():
        return False
    return bytes_of(tensor) <= _SMALL_BYTES
