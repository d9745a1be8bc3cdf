"""Reads one worker's shard: the same batch for the same epoch and step, also after a restart.

    reader = ShardReader(make_shard, element_spec)
    iterator = reader.at(epoch=1, step=0)      # in the thread and on the device of the worker
    function(iterator)                         # reads three batches
    reader.advance(3)
    reader.at(epoch=1, step=3)                 # the same iterator, or a new one that has skipped

The position is part of each request, so that a worker that is replaced goes on where its shard
stood. All epochs share a dataset: each new iterator over it shuffles again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class ShardReader:
    """The dataset of one shard on its worker, and the newest iterator over it.

    Args:
      make_variant: creates the dataset on the device of the caller; returns a variant tensor.
      element_spec: the `tf.TypeSpec` of its elements.
    """

    def __init__(self, make_variant: Callable[[], tf.Tensor], element_spec: Any) -> None:
        self._make_variant = make_variant
        self._element_spec = element_spec
        # Traced here, because several threads must not trace at the same time.
        self._skip = _skip.get_concrete_function(
            tf.data.IteratorSpec(element_spec), tf.TensorSpec([], tf.int64)
        )
        self._dataset: tf.data.Dataset | None = None
        self._iterator: Any = None
        # The number of iterators over the dataset, and of batches that the newest has returned.
        self._epoch = self._step = 0

    def at(self, epoch: int, step: int) -> Any:
        """An iterator whose next batch is that of a step.

        Args:
          epoch: the number of the iterator over the dataset, from 1.
          step: the number of batches before it.
        """
        if (self._epoch, self._step) > (epoch, step):
            self.forget()
        if self._dataset is None:
            variant = self._make_variant()
            self._dataset = tf.data.experimental.from_variant(variant, self._element_spec)
        while self._epoch < epoch:
            self._iterator = iter(self._dataset)
            self._epoch += 1
            self._step = 0
        if self._step < step:
            self._skip(self._iterator, tf.constant(step - self._step, tf.int64))
            self._step = step
        return self._iterator

    def cardinality(self) -> int:
        """The cardinality of the shard, as in `tf.data`; reads no batch.

        Creates the dataset once more, on the device of the caller.
        """
        dataset = tf.data.experimental.from_variant(self._make_variant(), self._element_spec)
        return int(dataset.cardinality())

    def advance(self, steps: int) -> None:
        """Records that batches were read from the iterator."""
        self._step += steps

    def forget(self) -> None:
        """Drops the dataset, because its worker was lost or its position is unknown."""
        self._dataset = self._iterator = None
        self._epoch = self._step = 0


@tf.function
def _skip(iterator: Any, count: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(count):
        iterator.get_next_as_optional()
    return count
