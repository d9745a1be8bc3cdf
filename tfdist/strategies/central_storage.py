"""The `central_storage` strategy: variables on the CPU, one replica on each local device."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.data import sharding
from tfdist.data.feed import Feed
from tfdist.errors import UsageError
from tfdist.strategies.local_devices import LocalDevices
from tfdist.upstream import keras3_central_storage
from tfdist.upstream.keras3_reduce import ReducesForKeras3


class _CentralStorageStrategy(
    ReducesForKeras3, sharding.TakesShards, tf.distribute.experimental.CentralStorageStrategy
):
    """TensorFlow's strategy, with support for sharded datasets and Keras 3."""

    def __init__(self, devices: list[str]) -> None:
        if keras_compat.is_keras_3(tf.keras.Model):
            keras3_central_storage.apply(tf.keras.Model, type(self))
        super().__init__(devices, "CPU:0")
        # For batch normalization of Keras 2, whose statistics an empty batch would make NaN.
        self.extended.enable_partial_batch_handling = True

    def scope(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(super().scope())
        stack.enter_context(tf.variable_creator_scope(_with_aggregation))
        return stack


def _with_aggregation(next_creator: Any, **options: Any) -> tf.Variable:
    """Sets the aggregation of a variable that has none, so that replicas can assign to it.

    Keras 3 does not set the aggregation, but assigns in every replica: moving statistics, which
    need the mean, and values that are equal in all replicas, such as a constrained weight.
    """
    if options.get("aggregation") == tf.VariableAggregation.NONE:
        is_float = tf.as_dtype(options["dtype"]).is_floating if options.get("dtype") else False
        options["aggregation"] = (
            tf.VariableAggregation.MEAN
            if is_float and not options.get("trainable")
            else tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
    variable: tf.Variable = next_creator(**options)
    return variable


class CentralStorage(LocalDevices):
    """Synchronous training on the devices of one machine, with variables on the CPU.

    TensorFlow drops the last step of an epoch if a device has no batch. To use every example, this
    class adds the missing batches, which are empty.
    """

    name = "central_storage"
    kind = _CentralStorageStrategy

    def wrap_optimizer(self, optimizer: Any) -> Any:
        optimizer = super().wrap_optimizer(optimizer)
        for inner in keras_compat.inner_optimizers(optimizer):
            keras3_central_storage.share_learning_rate(inner)
        return optimizer

    def prepare(self, model: tf.keras.Model) -> None:
        super().prepare(model)
        scales = [
            each for each in keras_compat.optimizers_of(model) if hasattr(each, "inner_optimizer")
        ]
        if keras_compat.is_keras_3(model) and scales:
            # A LossScaleOptimizer assigns inside a tf.cond, which this strategy does not support.
            raise UsageError(
                "optimizer",
                received=type(scales[0]).__name__,
                accepted=f"an optimizer without loss scaling, under {self.name} with Keras 3",
                remedy="Train with --strategy=mirrored.",
            )

    def fill_last_step(self, feed: Feed) -> tf.data.Dataset:
        missing = self.topology.num_replicas - 1
        return sharding.with_empty_batches(feed.local, missing) or feed.local.concatenate(
            sharding.empty_batches(feed.shard(self.topology.input_context), missing)
        )
