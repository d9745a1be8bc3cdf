"""`central_storage`: `CentralStorageStrategy`, variables on the CPU, replicas on the devices."""

from __future__ import annotations

import tensorflow as tf

from tfdist.strategies import datasets
from tfdist.strategies.in_graph import InGraph


class _Strategy(datasets.TakesShards, tf.distribute.experimental.CentralStorageStrategy):
    pass


class CentralStorage(InGraph):
    """Synchronous training on one machine's devices that share the CPU's variables.

    This strategy drops the last step of an epoch where there is not a batch for every device. The
    batches that are missing are of one example that is repeated, in training, and empty, in
    evaluation, so that every example is trained on and evaluated.
    """

    name = "central_storage"

    def _build(self, devices: list[str]) -> tf.distribute.Strategy:
        return _Strategy(devices, "CPU:0")

    def _fill_last_step(self, local: tf.data.Dataset, training: bool) -> tf.data.Dataset:
        fill = datasets.with_repeats if training else datasets.with_empty_batches
        return fill(local, self.num_replicas - 1)
