"""Small tensors that travel together: each message costs more than the bytes of a small tensor.

averages = over_packs(hvd.allreduce, gradients)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

#: A larger tensor travels separately: copying it twice would cost more than another message.
_SMALL_BYTES = 256 << 10
#: A pack is closed when it has so many: it waits for the last of its tensors.
_PACK_BYTES = 4 << 20

_DTYPES = frozenset({tf.float16, tf.bfloat16, tf.float32, tf.float64})


def pack(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
    """Tensors of one dtype and of static shapes, one after the other; shape [elements]."""
    # Horovod's ranks know a tensor by its name, which no other concatenation is to change.
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0, name="pack")


def unpack(packed: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """What `pack` was given, in the shapes of `like`."""
    parts = tf.split(packed, [tensor.shape.num_elements() for tensor in like])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def in_packs(
    send: Callable[[list[tf.Tensor]], list[tf.Tensor]], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """What `send` makes of the tensors, called once for those that travel together.

    These are small ones of the same dtype, in their order. What is not small, or not of floating
    point, or of a shape that is not static, is alone.
    """
    together: list[list[int]] = []
    last: dict[tf.DType, list[int]] = {}
    left: dict[tf.DType, int] = {}
    for place, tensor in enumerate(tensors):
        if not _is_small(tensor):
            together.append([place])
            continue
        if left.get(tensor.dtype, 0) <= 0:
            last[tensor.dtype], left[tensor.dtype] = [], _PACK_BYTES
            together.append(last[tensor.dtype])
        last[tensor.dtype].append(place)
        left[tensor.dtype] -= _bytes(tensor)
    results: dict[int, tf.Tensor] = {}
    for places in together:
        results.update(zip(places, send([tensors[place] for place in places]), strict=True))
    return [results[place] for place in range(len(tensors))]


def over_packs(
    operation: Callable[[tf.Tensor], tf.Tensor], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """What `operation` makes of each tensor, called once for those that travel together.

    Args:
      operation: of a tensor of any shape, element by element; its result has the same shape.
      tensors: gradients, say, in the order of their layers: the last are the first to be there,
        and are packed with one another.
    """

    def send(sent: list[tf.Tensor]) -> list[tf.Tensor]:
        return [operation(sent[0])] if len(sent) == 1 else unpack(operation(pack(sent)), sent)

    return in_packs(send, tensors[::-1])[::-1]


def _is_small(tensor: tf.Tensor) -> bool:
    if tensor.dtype not in _DTYPES or not tensor.shape.is_fully_defined():
        return False
    return _bytes(tensor) <= _SMALL_BYTES


def _bytes(tensor: tf.Tensor) -> int:
    return math.prod(tensor.shape) * int(tensor.dtype.size)
