"""How large variables are split over the parameter servers.

    partitioner = partitioner_of(ParameterServerOptions(partition_bytes=1 << 20))
    partitioner(tf.TensorShape([1 << 20, 16]), tf.float32)    # [64, 1]

A variable is split along its first axis into parts of nearly equal size: the first ones may have
one row more than the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.config.strategies.rows import ParameterServerOptions

Partitioner = Callable[[tf.TensorShape, tf.DType], Sequence[int]]

#: The minimum size of a part with `--variable_partitions`; TensorFlow's recommendation.
MIN_BYTES = 256 << 10


def partitioner_of(options: ParameterServerOptions) -> Partitioner | None:
    """The partitioner that the options ask for; None if variables stay whole.

    Returns:
      A function of a variable's shape and dtype, as `tf.distribute.ParameterServerStrategy` takes
      it. It returns the number of parts by axis, which is 1 for all but the first one.
    """
    size, count = options.partition_bytes, options.variable_partitions
    if size is not None:
        return partition_bytes(size)
    if (count or 1) == 1:
        return None
    partitioner: Partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=MIN_BYTES, max_shards=count
    )
    return partitioner


def partition_bytes(size: int) -> Partitioner:
    """A partitioner that makes parts of at most `size` bytes, but of at least one row."""

    def partition(shape: tf.TensorShape, dtype: tf.DType) -> Sequence[int]:
        shape = tf.TensorShape(shape)
        if not shape.rank:
            return []
        total = shape.num_elements() * (dtype.size or 16)
        return [parts_for(total, shape[0], size), *[1] * (shape.rank - 1)]

    return partition


def parts_for(total: int, rows: int, size: int) -> int:
    """The number of parts of a variable.

    Args:
      total: the bytes of the variable.
      rows: its size along the first axis.
      size: the largest number of bytes of a part; a part has at least one row.
    """
    if total <= size or not rows:
        return 1
    rows_per_part = max(size * rows // total, 1)
    return -(-rows // rows_per_part)


def whole_variables(partitioner: Partitioner | None, variables: Iterable[Any]) -> str | None:
    """A line about large variables of Keras 3 layers that cannot split them; None without any.

    Args:
      partitioner: the partitioner of the layers; None if variables stay whole.
      variables: the model's variables: `tf.Variable`, or `ShardedVariable` for a split one.
    """
    if partitioner is None:
        return None
    whole = [
        variable
        for variable in variables
        if not hasattr(variable, "variables")
        and variable.shape.rank
        and partitioner(variable.shape, variable.dtype)[0] > 1
    ]
    if not whole:
        return None
    names = ", ".join(f"{variable.name.split(':')[0]} {variable.shape}" for variable in whole)
    return (
        "with Keras 3, only the table of an Embedding and the kernel of a Dense layer are split, "
        f"without constraints and LoRA. These large variables stay whole: {names}."
    )
