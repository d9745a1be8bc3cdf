"""`Marks`: on a ps, how many steps of each shard have sent their updates in this epoch.

    marks = Marks(num_shards=8, device="/job:ps/replica:0/task:0/device:CPU:0")
    marks.begin([0] * 8)      # before the first step of an epoch
    marks.add(shard)          # in a step, when its gradients are sent
    marks.made(3)             # after the worker that reads shard 3 was lost

A worker that is lost has made steps that it has not reported. They are not made again.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import tensorflow as tf


class Marks:
    """The number of steps of each shard that have sent their updates.

    Args:
      num_shards: the number of shards.
      device: that of the ps.
    """

    def __init__(self, num_shards: int, device: str) -> None:
        self._device = device
        # No variable of the strategy: it is neither counted nor saved.
        with tf.init_scope(), tf.device(device):
            self._handle = tf.raw_ops.VarHandleOp(
                dtype=tf.int64, shape=[num_shards], shared_name=f"tfdist_marks_{uuid.uuid4().hex}"
            )
        self.begin([0] * num_shards)

    def begin(self, steps: Sequence[int]) -> None:
        """Begins an epoch of which steps were made before."""
        with tf.device(self._device):
            value = tf.constant(steps, tf.int64)
            tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)

    def add(self, shard: tf.Tensor) -> None:
        """Counts a step of a shard: int32, shape []."""
        one = tf.ones([], tf.int64)
        tf.raw_ops.ResourceScatterAdd(resource=self._handle, indices=shard, updates=one)

    def made(self, shard: int) -> int:
        """The number of steps of a shard."""
        with tf.device(self._device):
            return int(
                tf.raw_ops.ResourceGather(resource=self._handle, indices=shard, dtype=tf.int64)
            )
