"""`central_storage`: `CentralStorageStrategy`, variables on the CPU, replicas on the devices."""

from __future__ import annotations

from typing import Any

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

    def optimizer(self, optimizer: Any) -> Any:
        """The optimizer, made to take a learning-rate schedule.

        Keras assigns the current rate in every replica, to a variable for which it does not say
        what that means; this strategy alone insists on being told.
        """
        rate = getattr(optimizer, "_current_learning_rate", None)
        if rate is not None:
            optimizer._current_learning_rate = tf.Variable(
                rate, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )
        return optimizer

    def _fill_last_step(
        self, local: tf.data.Dataset, source: tf.data.Dataset, training: bool
    ) -> tf.data.Dataset:
        missing = self.num_replicas - 1
        if not missing:
            return local
        if training:
            return datasets.with_repeats(local, missing, source)
        return local.concatenate(datasets.empty_batches(source, missing))
