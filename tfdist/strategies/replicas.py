"""The base class of strategies where TensorFlow sums the replicas' gradients in each step."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.compat import checks
from tfdist.compat import keras as keras_compat
from tfdist.strategies.base import OptionsT, Strategy
from tfdist.strategies.checkpointing import Checkpointing
from tfdist.strategies.keras2_gradients import reduce_gradients
from tfdist.upstream import (
    collective_sparse_gradients,
    keras3_optimizer,
    replica_seeds,
    sync_on_read,
)
from tfdist.upstream.keras3_statistics import Statistics


class ReplicaCheckpointing(Checkpointing):
    """Averages the variables that Keras 3 keeps per replica, such as moving statistics."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    def synchronize(self) -> None:
        self._statistics.average()


class Replicas(Strategy[OptionsT]):
    """A `Strategy` over a synchronous `tf.distribute.Strategy`; subclasses implement `build`."""

    def set_up(self, options: OptionsT) -> None:
        sync_on_read.apply()
        collective_sparse_gradients.apply()
        replica_seeds.apply(replica_seeds.of_replica)
        self.tf_strategy = self.build(options)
        self._statistics = Statistics(self.tf_strategy, is_chief=self.topology.is_chief)
        self.checkpointing = ReplicaCheckpointing(self._statistics)

    def build(self, options: OptionsT) -> tf.distribute.Strategy:
        """Builds the `tf.distribute.Strategy` of this task."""
        raise NotImplementedError

    @property
    def gradient_dtype(self) -> str | None:
        """The dtype in which the gradients are summed; None for their own."""
        return None

    def scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = self.tf_strategy.scope()
        return scope

    def wrap_optimizer(self, optimizer: Any) -> Any:
        if keras_compat.is_keras_3(optimizer):
            checks.check_made_in_scope(optimizer, self.tf_strategy, self.name)
            return keras3_optimizer.reduce_gradients_first(optimizer, self.gradient_dtype)
        return reduce_gradients(optimizer, self.gradient_dtype)

    def prepare(self, model: tf.keras.Model) -> None:
        checks.check_is_not_compiled_by_xla(model, self.name)
        if keras_compat.is_keras_3(model):
            checks.check_model_of_keras_3(model, self.name)
            checks.check_scope(model, self.tf_strategy, self.name)

    def callbacks(self) -> list[tf.keras.callbacks.Callback]:
        return [self._statistics]
