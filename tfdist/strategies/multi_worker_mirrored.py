"""`multi_worker_mirrored`: synchronous all-reduce by TensorFlow's strategy of that name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.config.role import TaskSettings
from tfdist.config.strategies.rows import AllReduceOptions
from tfdist.coordination.agreement import SHARE_DIRECTORY
from tfdist.coordination.probe import wait_for_server
from tfdist.data import sharding
from tfdist.data.feed import Feed
from tfdist.data.position import Position
from tfdist.data.sharding import TakesShards, shards_of
from tfdist.process.devices import use_devices
from tfdist.process.resources import check_semaphores
from tfdist.strategies.base import Topology
from tfdist.strategies.collectives import PACK_BYTES
from tfdist.strategies.replicas import keras_local_calls, sync_on_read
from tfdist.strategies.replicas.sync_on_read import on_read_variables, read_at_once
from tfdist.strategies.replicated import ReplicaCheckpointing, Replicas
from tfdist.upstream import keras3_callbacks, keras3_step_results, tf_coordination
from tfdist.upstream.keras2_step_logs import KeepsMetricResults
from tfdist.upstream.keras3_reduce import ReducesForKeras3

_SERVER_SECONDS = 5.0
CommunicationImplementation = tf.distribute.experimental.CommunicationImplementation


# `tf.estimator` and TensorFlow's sessions recognize this strategy by the name of its class.
class MultiWorkerMirroredStrategy(
    ReducesForKeras3,
    KeepsMetricResults,
    TakesShards,
    tf.distribute.MultiWorkerMirroredStrategy,
):
    """TensorFlow's strategy, for sharded datasets and for Keras 3."""


class _Checkpointing(ReplicaCheckpointing):
    """All tasks take part in a save, because ON_READ variables need every task."""

    all_save = True

    def save_scope(self, model: tf.keras.Model) -> contextlib.AbstractContextManager[None]:
        return read_at_once(self._strategy.tf_strategy, on_read_variables(model))

    def finish(self, model: tf.keras.Model) -> None:
        """Lets each task use the trained model without the others."""
        super().finish(model)
        sync_on_read.use_own_values(True)

    def wait_for_chief(self) -> None:
        self._strategy.gather(0)

    def broadcast(self, model: tf.keras.Model, position: Position) -> Position:
        self._strategy.agreement.check(
            "resuming",
            lambda: {
                "the checkpoint": f"epoch {position.epoch} step {max(position.steps, default=0)}"
            },
            remedy=SHARE_DIRECTORY,
        )
        return position


class MultiWorkerMirrored(Replicas[AllReduceOptions]):
    """Every training task has a copy of the variables; a ring or NCCL sums the gradients."""

    name = "multi_worker_mirrored"

    def set_up(self, options: AllReduceOptions) -> None:
        super().set_up(options)
        self.gradient_dtype = options.gradient_dtype
        self.kv_store = tf_coordination.store_of(self.cluster)
        self.checkpointing = _Checkpointing(self)

    def build(self, options: AllReduceOptions) -> tf.distribute.Strategy:
        if not keras_compat.is_keras_3(tf.keras.Model):
            sync_on_read.apply_to_metrics(tf.keras.Model)
        else:
            keras3_step_results.apply()
            if not self._is_chief:
                keras3_callbacks.apply()
        keras_local_calls.apply(tf.keras.Model, MultiWorkerMirroredStrategy, _is_distributed)
        return build_strategy(self.settings, options)

    @property
    def topology(self) -> Topology:
        tasks = self.cluster.training_tasks
        replicas = int(self.tf_strategy.num_replicas_in_sync)
        shards = max(1, len(tasks))
        return Topology(
            str(self.task),
            tuple(map(str, tasks or (self.task,))),
            is_chief=self._is_chief,
            num_replicas=replicas,
            num_local_replicas=replicas // shards,
            num_shards=shards,
            shard=tasks.index(self.task) if tasks else 0,
        )

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Checks that all tasks create the same variable before TensorFlow broadcasts its value."""

        def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
            initial: Any = arguments.get("initial_value")

            def agreed() -> Any:
                given = initial() if callable(initial) else initial
                value = tf.convert_to_tensor(given, arguments.get("dtype"))
                kind = f"{value.dtype.name} of shape {value.shape}"
                name = f"the variable {arguments.get('name')}"
                self.agreement.check("creating a variable", lambda: {name: kind})
                return value

            # TensorFlow recognizes the object that restores a value.
            if initial is not None and not hasattr(initial, "checkpoint_position"):
                arguments["initial_value"] = agreed
            return next_creator(**arguments)

        with self.tf_strategy.scope(), tf.variable_creator_scope(create):
            yield

    def prepare(self, model: tf.keras.Model) -> None:
        sync_on_read.use_own_values(False)
        super().prepare(model)
        self.tf_strategy.model = model

    def distribute(self, feed: Feed) -> tf.data.Dataset:
        batches = int(feed.local.cardinality())
        replicas = self.topology.num_local_replicas
        steps = sharding.steps_of(self.gather(batches), replicas)
        missing = steps * replicas - batches
        even = sharding.with_empty_batches(feed.local, missing) if steps >= 0 else None
        shards = sharding.Shards(even or feed.local, is_even=even is not None)
        return sharding.for_keras(shards, steps)

    def gather(self, number: int) -> list[int]:
        gathered = self._gather_function(tf.constant(number, tf.int64))
        everywhere = self.tf_strategy.experimental_local_results(gathered)[0].numpy().tolist()
        return [int(value) for value in everywhere[:: self.topology.num_local_replicas]]

    @functools.cached_property
    def _gather_function(self) -> Any:
        # Traced once, because tracing takes longer than running.
        @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
        def gather(number: tf.Tensor) -> Any:
            return self.tf_strategy.run(
                lambda: tf.distribute.get_replica_context().all_gather(number[tf.newaxis], axis=0)
            )

        return gather


def _is_distributed(data: Any) -> bool:
    """Whether each task has its own part of the data."""
    if not isinstance(data, tf.data.Dataset):
        return isinstance(data, tf.distribute.DistributedDataset)
    policy = data.options().experimental_distribute.auto_shard_policy
    return policy == tf.data.experimental.AutoShardPolicy.OFF or shards_of(data) is not None


def build_strategy(
    settings: TaskSettings, options: AllReduceOptions
) -> MultiWorkerMirroredStrategy:
    """Creates the `tf.distribute.Strategy` of a task and connects it to the other tasks.

    Args:
      settings: what is known of this task.
      options: the implementation of the all-reduce.

    Raises:
      UsageError: TensorFlow cannot create its threads for collective operations here.
    """
    check_semaphores()
    cluster, own = settings.cluster, settings.task
    tasks = cluster.training_tasks
    devices = use_devices(
        settings.num_gpus, place=cluster.local_rank_of(own, tasks) if tasks else (0, 1)
    )
    if len(tasks) > 1:
        tf_coordination.set_heartbeat(cluster, settings.heartbeat_timeout)
        if own != cluster.chief_task:
            # TensorFlow retries a refused connection only after a second.
            wait_for_server(cluster.address(cluster.chief_task), _SERVER_SECONDS)
    return MultiWorkerMirroredStrategy(
        cluster_resolver=tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster.jobs(in_tensorflow=True)),
            task_type=own.type if cluster else None,
            task_id=own.index if cluster else None,
            rpc_layer="grpc",
            # Without this number the strategy computes on the CPU.
            num_accelerators={"GPU": sum(name.startswith("GPU") for name in devices)},
        ),
        communication_options=tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=PACK_BYTES,
            implementation=CommunicationImplementation[options.all_reduce.upper()],
        ),
    )
