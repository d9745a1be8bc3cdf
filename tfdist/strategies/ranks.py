"""The base class of strategies where each task trains its own copy of the model as one rank.

Horovod and local SGD use it. Each rank reads one shard of the data. Keras does not know about the
other ranks, so this module synchronizes the logs, the steps per epoch and the initial state with
collectives.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.cluster import Task
from tfdist.cluster.task_types import WORKER
from tfdist.compat import checks, metric_states
from tfdist.compat import keras as keras_compat
from tfdist.config.strategies.rows import LocalSGDOptions
from tfdist.data import sharding
from tfdist.data.feed import Feed
from tfdist.data.position import Position
from tfdist.errors import UsageError
from tfdist.layers.dynamic_embedding import of_model
from tfdist.strategies.averaged_statistics import AveragedStatistics
from tfdist.strategies.base import OptionsT, Strategy, Topology
from tfdist.strategies.checkpointing import Checkpointing
from tfdist.strategies.cluster_metrics import ClusterMetrics, combined_results
from tfdist.strategies.collectives import Collectives
from tfdist.strategies.equal_weights import EqualWeights
from tfdist.strategies.local_sgd import LocalSGD, Synchronization
from tfdist.upstream import replica_seeds


class RankCheckpointing(Checkpointing):
    """Rank 0 saves, and every rank starts from the state that rank 0 has restored.

    Args:
      strategy: the strategy.
    """

    def __init__(self, strategy: Ranks[Any]) -> None:
        self._strategy = strategy

    def state(self, model: tf.keras.Model) -> dict[str, Any]:
        return self._strategy.local.state(model) if self._strategy.local else {}

    def synchronize(self) -> None:
        if self._strategy.local:
            self._strategy.local.synchronize()
        self._strategy.statistics.average()

    def broadcast(self, model: tf.keras.Model, position: Position) -> Position:
        """Copies the position, the weights and the optimizer's state of rank 0 to all ranks.

        Raises:
          UsageError: the model has no weights yet.
        """
        if not model.built:
            raise UsageError(
                "model",
                received="a model without weights",
                accepted=f"a built model under {self._strategy.name}, so that all ranks start with "
                "the same weights",
                remedy="Add an Input layer, or call model.build.",
            )
        state = keras_compat.model_variables(model)
        for optimizer in keras_compat.optimizers_of(model):
            state += keras_compat.optimizer_variables(optimizer)
        # In Keras 2 the learning rate is not one of the optimizer's variables.
        state += keras_compat.hyperparameters(model).values()
        collectives, local = self._strategy.collectives, self._strategy.local
        collectives.broadcast(state)
        if local:
            local.begin()
        return Position.from_json(collectives.broadcast_text(position.to_json()))


class Ranks(Strategy[OptionsT]):
    """Base class for strategies in which each task trains its own copy of the model (a rank).

    Subclasses call `set_up_ranks` in `set_up`.

    Attributes:
      collectives: the collectives of the ranks.
      local: local SGD; None if the gradients of each step are averaged.
      statistics: averages the moving statistics.
    """

    collectives: Collectives
    local: LocalSGD | None = None
    statistics: AveragedStatistics

    _has_empty_batches = False

    def set_up_ranks(self, collectives: Collectives) -> None:
        """Sets up the collectives, and local SGD if the options ask for it."""
        options = self.options
        self.collectives = collectives
        if isinstance(options, LocalSGDOptions) and options.sync_period is not None:
            self.local = LocalSGD(collectives, options.sync_period, options)
        # Outside of functions a script may draw what must be equal in all ranks.
        replica_seeds.apply(lambda: collectives.rank if tf.inside_function() else 0)
        self.tf_strategy = tf.distribute.get_strategy()
        self.statistics = AveragedStatistics(
            self.tf_strategy, collectives.mean, is_chief=collectives.rank == 0
        )
        self.checkpointing = RankCheckpointing(self)
        self.sum_of_step = lambda value: collectives.sum([value])[0]

    @property
    def topology(self) -> Topology:
        rank, size = self.collectives.rank, self.collectives.size
        ranks = [Task(WORKER, rank) for rank in range(size)]
        tasks = tuple(map(str, self.cluster.training_tasks or ranks))
        return Topology(
            tasks[rank],
            tasks,
            is_chief=rank == 0,
            num_replicas=size,
            num_shards=size,
            shard=rank,
            averages_weights=self.local is not None,
        )

    def prepare(self, model: tf.keras.Model) -> None:
        if self.local:
            checks.check_no_synchronized_layer(model, f"{self.name} with --sync_period")

    def callbacks(self) -> list[tf.keras.callbacks.Callback]:
        callbacks = [ClusterMetrics(self.collectives), self.statistics]
        if self.local:
            return [Synchronization(self.local), *callbacks]
        return [*callbacks, EqualWeights(self, self.collectives.broadcast)]

    def cluster_metrics(self, model: tf.keras.Model, logs: dict[str, float]) -> dict[str, float]:
        return combined_results(model, self.collectives)

    def states_of_replica(self, model: tf.keras.Model) -> list[tf.Variable]:
        if not self._has_empty_batches:
            return []
        # All ranks change a dynamic table by the ids of all.
        own = {id(each) for table in of_model(model) for each in table.non_trainable_variables}
        states = keras_compat.without_vocabularies(model.non_trainable_variables)
        states = [each for each in states if id(each) not in own]
        return [*keras_compat.as_tensorflow(states), *metric_states.states_of(model)]

    def gather(self, number: int) -> list[int]:
        return self.collectives.gather(number)

    def distribute(self, feed: Feed) -> tf.data.Dataset:
        local = feed.local
        if not feed.trains:
            has_batch = any(True for _ in local.take(1))
            # Keras needs a batch to evaluate, even in a rank without examples.
            return local if has_batch else self._with_empty_batches(feed, 1)
        even = self._even(feed)
        return self._noticed(even, "unless the optimizer is from job.wrap_optimizer")

    def _even(self, feed: Feed) -> tf.data.Dataset:
        """The batches of this rank, extended to the number of steps that every rank makes."""
        local = feed.local
        batches = sharding.count_batches(local)
        if batches == sharding.INFINITE:
            return local
        steps = max(self.gather(batches))
        if batches < steps and self.local:
            # A rank of local SGD makes each step with an example.
            context = self.topology.input_context
            local = sharding.with_repeats(local, steps - batches, lambda: feed.shard(context))
        elif batches < steps:
            self._has_empty_batches = True
            local = self._with_empty_batches(feed, steps - batches)
        return local.apply(tf.data.experimental.assert_cardinality(steps))

    def _with_empty_batches(self, feed: Feed, count: int) -> tf.data.Dataset:
        # Another rank may have a batch if this one has none.
        whole = tf.distribute.InputContext()
        return sharding.with_empty_batches(feed.local, count) or feed.local.concatenate(
            sharding.empty_batches(feed.shard(whole), count)
        )
