"""Small tensors that travel together: each message costs more than the bytes of a small tensor.

averages = over_packs(hvd.allreduce, gradients)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import tensorflow as tf

#: A larger tensor travels by itself: copying it twice would cost more than another message.
_SMALL_BYTES = 256 << 10
#: A pack waits for the last of its tensors; those of one this large for a part of a large model.
_PACK_BYTES = 4 << 20


def is_small(tensor: tf.Tensor) -> bool:
    """Whether a tensor is of numbers, of static shape, and better packed than by itself."""
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
    return bool(is_number and tensor.shape.is_fully_defined() and _bytes(tensor) <= _SMALL_BYTES)


def pack(tensors: Iterable[tf.Tensor]) -> tf.Tensor:
    """Tensors of one dtype and of static shapes, one after the other; shape [elements]."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def unpack(packed: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """What `pack` was given, in the shapes of `like`."""
    parts = tf.split(packed, [tensor.shape.num_elements() for tensor in like])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def over_packs(
    operation: Callable[[tf.Tensor], tf.Tensor], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """What `operation` makes of each tensor, called once for many small ones.

    Args:
      operation: of a tensor of any shape, element by element; its result has the same shape.
      tensors: gradients, say, in the order of their layers: the last are the first to be there,
        and are packed with one another.
    """
    results: dict[int, tf.Tensor] = {}
    packs: defaultdict[tf.DType, list[int]] = defaultdict(list)

    def send(places: list[int]) -> None:
        sent = [tensors[place] for place in places]
        results.update(zip(places, unpack(operation(pack(sent)), sent), strict=True))
        places.clear()

    for place in reversed(range(len(tensors))):
        tensor = tensors[place]
        if not is_small(tensor):
            results[place] = operation(tensor)
            continue
        together = packs[tensor.dtype]
        together.append(place)
        if sum(_bytes(tensors[other]) for other in together) >= _PACK_BYTES:
            send(together)
    for together in packs.values():
        if together:
            send(together)
    return [results[place] for place in range(len(tensors))]


def _bytes(tensor: tf.Tensor) -> int:
    return math.prod(tensor.shape) * int(tensor.dtype.size)
