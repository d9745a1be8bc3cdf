"""Strategies under which every task trains a model of its own: those of Horovod and local SGD.

The tasks are ranks with a shard of the data each. Keras does not know of the other ranks, so their
logs, their steps per epoch and their initial state are made equal here, by collectives.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.data import sharding
from tfdist.data.position import Position
from tfdist.strategies.base import DatasetFunction, Strategy, Topology
from tfdist.strategies.checkpointing import Checkpointing
from tfdist.strategies.collectives import Collectives
from tfdist.strategies.local_sgd import LocalSGD, OuterSteps, Synchronization
from tfdist.strategies.rank_callbacks import AveragedStatistics, ClusterMetrics, summed_results


class RankCheckpointing(Checkpointing):
    """Rank 0 saves, and every rank starts from what rank 0 has restored.

    Args:
      name: the strategy's name.
      collectives: those of the ranks.
      statistics: what is averaged before a checkpoint.
      local: local SGD; None if the gradients of each step are averaged.
    """

    def __init__(
        self,
        name: str,
        collectives: Collectives,
        statistics: AveragedStatistics,
        local: LocalSGD | None,
    ) -> None:
        self._name = name
        self._collectives = collectives
        self._statistics = statistics
        self._local = local

    def state(self, model: tf.keras.Model) -> dict[str, Any]:
        return self._local.state(model) if self._local else {}

    def synchronize(self) -> None:
        if self._local:
            self._local.synchronize()
        self._statistics.average()

    def broadcast(self, model: tf.keras.Model, position: Position) -> Position:
        """Gives every rank the epoch, the weights and the optimizer's state of rank 0.

        Raises:
          ValueError: the model has no weights yet.
        """
        if not model.built:
            raise ValueError(
                f"model: received one without weights; accepted under {self._name}: a built one, "
                "so that all ranks can start with the same weights. Add an Input layer or call "
                "model.build."
            )
        optimizer_variables = model.optimizer.variables
        if callable(optimizer_variables):
            optimizer_variables = optimizer_variables()
        # Keras 2 does not count the learning rate among the optimizer's variables.
        learning_rate = keras_compat.learning_rate_variable(model.optimizer)
        state = [] if learning_rate is None else [learning_rate]
        self._collectives.broadcast([*model.variables, *optimizer_variables, *state])
        if self._local:
            self._local.begin()
        return Position.from_json(self._collectives.broadcast_object(position.to_json()))


class Ranks(Strategy):
    """The part of a `Strategy` that its subclasses share; their `set_up` calls `set_up_ranks`."""

    collectives: Collectives
    local: LocalSGD | None

    def set_up_ranks(self, collectives: Collectives, outer: OuterSteps | None) -> None:
        """Sets up what the ranks have in common.

        Args:
          collectives: those of the ranks.
          outer: how the weights are averaged; None if the gradients of each step are.
        """
        self.collectives = collectives
        self.local = LocalSGD(collectives, outer) if outer else None
        self.tf_strategy = tf.distribute.get_strategy()
        self._statistics = AveragedStatistics(collectives)
        self.checkpointing = RankCheckpointing(self.name, collectives, self._statistics, self.local)

    @property
    def topology(self) -> Topology:
        rank, size = self.collectives.rank, self.collectives.size
        tasks = tuple(map(str, self.cluster.training_tasks or range(size)))
        return Topology(
            tasks[rank],
            tasks,
            is_chief=rank == 0,
            num_replicas=size,
            num_shards=size,
            shard=rank,
            averages_weights=self.local is not None,
        )

    def scope(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def callbacks(self) -> list[tf.keras.callbacks.Callback]:
        callbacks = [ClusterMetrics(self.collectives), self._statistics]
        return [Synchronization(self.local), *callbacks] if self.local else callbacks

    def cluster_metrics(self, model: tf.keras.Model, logs: dict[str, float]) -> dict[str, float]:
        return summed_results(model, self.collectives)

    def distribute(self, dataset_fn: DatasetFunction, *, training: bool) -> tf.data.Dataset:
        context = self.topology.input_context
        local = dataset_fn(context)
        if not training:
            if any(True for _ in local.take(1)):
                return local
            # Keras needs a batch to evaluate, also in a rank without an example.
            return sharding.empty_batches(dataset_fn(tf.distribute.InputContext()), 1)
        # A rank must know before an epoch whether the others have more batches.
        batches = sharding.count_batches(local)
        if batches == sharding.INFINITE:
            return self.cursor.follow(local)
        everywhere = self.collectives.gather(batches)
        if min(everywhere) == 0:
            raise RuntimeError(
                f"rank {everywhere.index(0)} of {len(everywhere)} got no example to train on: "
                "train on fewer ranks, or on more data."
            )
        steps = max(everywhere)
        if batches < steps:
            local = sharding.with_repeats(local, steps - batches, dataset_fn(context))
        return self.cursor.follow(local.apply(tf.data.experimental.assert_cardinality(steps)))
