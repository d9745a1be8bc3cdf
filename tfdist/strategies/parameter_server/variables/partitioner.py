"""Splits large variables over the parameter servers.

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
    partitioners: Any = tf.distribute.experimental.partitioners
    partitioner: Partitioner | None = None
    size, count = options.partition_bytes, options.variable_partitions
    if size is not None:
        partitioner = partitioners.MaxSizePartitioner(max_shard_bytes=size)
    elif count is not None and count > 1:
        partitioner = partitioners.MinSizePartitioner(min_shard_bytes=MIN_BYTES, max_shards=count)
    return partitioner


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
