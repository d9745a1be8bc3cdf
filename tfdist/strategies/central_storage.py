"""`central_storage`: `CentralStorageStrategy`, variables on the CPU, replicas on the devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.errors import UsageError
from tfdist.strategies import datasets
from tfdist.strategies.in_graph import InGraph
from tfdist.strategies.keras3 import ReducesForKeras3
from tfdist.strategies.keras3_sums import add_in_one_operation

_UNSAID = tf.VariableAggregation.NONE


class _Strategy(
    ReducesForKeras3, datasets.TakesShards, tf.distribute.experimental.CentralStorageStrategy
):
    def scope(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(super().scope())
        stack.enter_context(tf.variable_creator_scope(_with_aggregation))
        return stack


def _with_aggregation(next_creator: Any, **options: Any) -> tf.Variable:
    """Says how the values that replicas assign become one.

    Keras 3 does not say it, and assigns in every replica: moving statistics, which are averages,
    and what is the same in all, such as a weight that a constraint has changed.
    """
    if options.get("aggregation") == _UNSAID:
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

    This strategy drops the last step of an epoch where there is not a batch for every device. The
    batches that are missing are of one example that is repeated, in training, and empty, in
    evaluation, so that every example is trained on and evaluated.
    """

    name = "central_storage"

    def _build(self, devices: list[str]) -> tf.distribute.Strategy:
        if compat.is_keras_3(tf.keras.Model):
            _count_once(tf.keras.Model)
        return _Strategy(devices, "CPU:0")

    def optimizer(self, optimizer: Any) -> Any:
        """The optimizer, made to take a learning-rate schedule.

        Keras assigns the current rate in every replica, to a variable for which it does not say
        what that means; this strategy alone insists on being told.
        """
        optimizer = super().optimizer(optimizer)
        rate = getattr(optimizer, "_current_learning_rate", None)
        if rate is not None:
            optimizer._current_learning_rate = tf.Variable(
                rate, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )
        return optimizer

    def check(self, model: tf.keras.Model) -> None:
        super().check(model)
        if compat.is_keras_3(model) and hasattr(model.optimizer, "inner_optimizer"):
            # It assigns in a condition, where this strategy's replicas cannot meet.
            raise UsageError(
                "optimizer",
                received=type(model.optimizer).__name__,
                accepted="one that does not scale the loss, under central_storage with Keras 3",
                remedy="Train with --strategy=mirrored.",
            )

    def _fill_last_step(
        self, local: tf.data.Dataset, source: tf.data.Dataset, training: bool
    ) -> tf.data.Dataset:
        missing = self.num_replicas - 1
        if not missing:
            return local
        if training:
            return datasets.with_repeats(local, missing, source)
        return local.concatenate(datasets.empty_batches(source, missing))


def _counts_once(make: Callable[..., None]) -> Callable[..., None]:
    """`make_train_function`, or that for tests, of whose metrics a replica adds its part alone."""

    @functools.wraps(make)
    def call(model: Any, force: bool = False) -> None:
        if isinstance(model.distribute_strategy, _Strategy):
            # What was traced before counts wrong.
            force = add_in_one_operation(compat.metric_variables(model)) or force
        make(model, force)

    return call


@functools.cache
def _count_once(model_class: Any) -> None:
    """Lets the metrics of models of Keras 3 count the sum over the replicas once."""
    for name in ("make_train_function", "make_test_function"):
        setattr(model_class, name, _counts_once(getattr(model_class, name)))
