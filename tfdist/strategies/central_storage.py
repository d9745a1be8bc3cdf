"""`central_storage`: `CentralStorageStrategy`, variables on the CPU, replicas on the devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.data import sharding
from tfdist.errors import UsageError
from tfdist.strategies.in_graph import InGraph
from tfdist.upstream.keras3 import ReducesForKeras3
from tfdist.upstream.keras3_assign_add import add_in_one_operation


class _CentralStorageStrategy(
    ReducesForKeras3, sharding.TakesShards, tf.distribute.experimental.CentralStorageStrategy
):
    """TensorFlow's, for datasets that are sharded already, and for Keras 3."""

    def scope(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(super().scope())
        stack.enter_context(tf.variable_creator_scope(_with_aggregation))
        return stack


def _with_aggregation(next_creator: Any, **options: Any) -> tf.Variable:
    """Gives a variable without an aggregation one, so that replicas may assign to it.

    Keras 3 does not set the aggregation, and assigns in every replica: moving statistics, whose
    mean is right, and values that are equal in all replicas, such as a constrained weight.
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


class CentralStorage(InGraph):
    """Synchronous training on one machine's devices that share the CPU's variables.

    TensorFlow drops the last step of an epoch if there is no batch for some device. Here the
    missing batches repeat one example in training and are empty in evaluation, so that every
    example counts.
    """

    name = "central_storage"

    def build_over(self, devices: list[str]) -> tf.distribute.Strategy:
        if keras_compat.is_keras_3(tf.keras.Model):
            _count_once(tf.keras.Model)
        return _CentralStorageStrategy(devices, "CPU:0")

    def wrap_optimizer(self, optimizer: Any) -> Any:
        optimizer = super().wrap_optimizer(optimizer)
        rate = getattr(optimizer, "_current_learning_rate", None)
        if rate is not None:
            # Keras assigns the current rate of a schedule in every replica.
            optimizer._current_learning_rate = tf.Variable(
                rate, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )
        return optimizer

    def check(self, model: tf.keras.Model) -> None:
        super().check(model)
        if keras_compat.is_keras_3(model) and hasattr(model.optimizer, "inner_optimizer"):
            # It assigns in a condition, which the replicas of this strategy cannot do.
            raise UsageError(
                "optimizer",
                received=type(model.optimizer).__name__,
                accepted=f"one that does not scale the loss, under {self.name} with Keras 3",
                remedy="Train with --strategy=mirrored.",
            )

    def fill_last_step(
        self, local: tf.data.Dataset, source: tf.data.Dataset, training: bool
    ) -> tf.data.Dataset:
        missing = self.topology.num_replicas - 1
        if not missing:
            return local
        if training:
            return sharding.with_repeats(local, missing, source)
        return local.concatenate(sharding.empty_batches(source, missing))


def _counts_once(make: Callable[..., None]) -> Callable[..., None]:
    """`make_train_function`, or that for tests, of whose metrics a replica adds its part alone."""

    @functools.wraps(make)
    def call(model: Any, force: bool = False) -> None:
        if isinstance(model.distribute_strategy, _CentralStorageStrategy):
            # What was traced before counts wrong.
            force = add_in_one_operation(keras_compat.metric_variables(model)) or force
        make(model, force)

    return call


@functools.cache
def _count_once(model_class: Any) -> None:
    """Lets the metrics of models of Keras 3 count the sum over the replicas once."""
    for name in ("make_train_function", "make_test_function"):
        setattr(model_class, name, _counts_once(getattr(model_class, name)))
