"""TensorFlow's `ParameterServerStrategy` with sharded datasets and variables placed by bytes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.cluster.task_types import CHIEF, PS, WORKER
from tfdist.compat import keras as keras_compat
from tfdist.data import sharding
from tfdist.strategies.parameter_server.variables.partitioner import Partitioner
from tfdist.strategies.parameter_server.variables.placement import Placement


class _ClusterSpec(tf.train.ClusterSpec):
    """A cluster of which TensorFlow does not connect to some workers."""

    def __init__(self, jobs: Mapping[str, Sequence[str]], away: Collection[int]) -> None:
        super().__init__(jobs)
        self._away = away

    def as_cluster_def(self) -> Any:
        definition = super().as_cluster_def()
        tasks = {job.name: job.tasks for job in definition.job}
        for worker in self._away:
            del tasks[WORKER][worker]
        return definition


class PassesShards(tf.distribute.ParameterServerStrategy):
    """A `ParameterServerStrategy` that distributes a dataset of `job.dataset`.

    Args:
      jobs: the addresses of the tasks by type, with a chief.
      away: the workers that the strategy does not connect to; see `Reconnection`.
      partitioner: splits variables; with Keras 3, those of its layers. None if they stay whole.

    Attributes:
      layer_partitioner: the partitioner of the layers of Keras 3; None with Keras 2.
      placement: where the variables lie.
      workers: the addresses of the workers.
      away: the workers that the strategy has not connected to.
      split_variables: the variables of Keras 3 in parts.
      distribute_shards: distributes shards over the workers; set by the coordinator.
    """

    distribute_shards: Callable[[sharding.Shards], Any]

    def __init__(
        self,
        jobs: Mapping[str, Sequence[str]],
        partitioner: Partitioner | None,
        away: Collection[int] = (),
    ) -> None:
        self.workers, self.away = jobs[WORKER], away
        is_keras_3 = keras_compat.is_keras_3(tf.keras.Model)
        self.layer_partitioner = partitioner if is_keras_3 else None
        self.split_variables: weakref.WeakSet[Any] = weakref.WeakSet()
        self.placement = Placement(len(jobs[PS]))
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            _ClusterSpec(jobs, away), task_type=CHIEF, task_id=0, rpc_layer="grpc"
        )
        super().__init__(resolver, None if is_keras_3 else partitioner)

    def scope(self) -> AbstractContextManager[Any]:
        scope: AbstractContextManager[Any] = super().scope()
        is_entered = tf.distribute.has_strategy() and tf.distribute.get_strategy() is self
        return scope if is_entered else self.placement.scope(scope)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        shards = sharding.shards_of(dataset)
        if shards is not None:
            return self.distribute_shards(shards)
        return super().experimental_distribute_dataset(dataset, options)
