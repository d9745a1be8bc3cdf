"""`parameter_server`: `tf.distribute.ParameterServerStrategy`, asynchronous, variables on the ps.

The chief coordinates; workers and ps serve. A job without a chief is led by worker 0, which serves
and coordinates in one process, as the classic scripts have it.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from functools import partial

import tensorflow as tf

from tfdist import compat, heartbeat
from tfdist.cluster import host_and_port
from tfdist.errors import UsageError
from tfdist.flags import JobFlags
from tfdist.strategies import datasets, keras3
from tfdist.strategies.base import DatasetFunction, Job
from tfdist.strategies.devices import use_devices
from tfdist.strategies.epoch_coordinator import EpochCoordinator, PassesShards
from tfdist.strategies.remote_variables import RemoteVariables
from tfdist.strategies.serving import serve_until_end

#: A variable is split only into parts of at least this size, so that small ones stay whole.
_MIN_SHARD_BYTES = 256 << 10


class ParameterServer(Job):
    """Between-graph, asynchronous training with the variables on the ps."""

    name = "parameter_server"
    # Else each ps would write its part to the disk of its own machine.
    io_device = "/job:chief/replica:0/task:0/device:CPU:0"

    @property
    def serves(self) -> bool:
        return self.task != self.cluster.leader

    @property
    def num_replicas(self) -> int:
        return 1 if self.serves else super().num_replicas

    @property
    def num_input_pipelines(self) -> int:
        return len(self.cluster.worker)

    @property
    def input_contexts(self) -> list[tf.distribute.InputContext]:
        # The chief makes all of them and sees what the workers fail with.
        workers = self.num_input_pipelines
        return [
            tf.distribute.InputContext(
                num_input_pipelines=workers,
                input_pipeline_id=worker,
                num_replicas_in_sync=self.num_replicas,
            )
            for worker in range(workers)
        ]

    def steps_per_epoch(self, examples: int, per_replica: int) -> int:
        workers, batch = self.num_input_pipelines, per_replica * self.num_local_replicas
        shards = [(examples + index) // workers for index in range(workers)]
        return sum(-(-shard // batch) for shard in shards)

    def check(self, model: tf.keras.Model) -> None:
        super().check(model)
        if compat.is_keras_3(model):
            keras3.check_scope(model, self.strategy, self.name)

    @property
    def sees_steps(self) -> bool:
        return False

    def step_of_epoch(self, steps: Sequence[int]) -> int:
        return sum(steps)

    def before_steps(self, call: Callable[[Callable[[], Sequence[int]]], None]) -> None:
        self._coordinator.before_step = lambda epoch: call(epoch.steps)

    def saving(self, model: tf.keras.Model) -> contextlib.AbstractContextManager[None]:
        return self._remote_variables.read_together()

    def go_on(self, model: tf.keras.Model, epochs: int, steps: Sequence[int]) -> None:
        self._coordinator.start_at(epochs, steps)

    def serve(self) -> None:
        if not self.serves:
            super().serve()
        serve_until_end(self)

    def _set_up(self, options: JobFlags) -> None:
        if not self.cluster.worker:
            raise UsageError(
                "cluster.worker",
                received=[],
                accepted="at least one address where there are ps",
                remedy="Add a worker: the chief of a Keras job coordinates and trains nothing.",
            )
        partitions = options.variable_partitions or 1
        if compat.is_keras_3(tf.keras.Model):
            _prepare_keras_3(partitions)
        tasks = [task for task in self.cluster.tasks() if task.type == self.task.type]
        use_devices(
            0 if self.task.type == "ps" else options.num_gpus,
            place=self.cluster.place_on_host(self.task, tasks),
        )
        if self.task.type != "chief":
            self._server = tf.distribute.Server(
                tf.train.ClusterSpec(self.cluster.jobs()),
                job_name=self.task.type,
                task_index=self.task.index,
                protocol="grpc",
            )
        if self.serves:
            return
        self._remote_variables = RemoteVariables()
        jobs = self.cluster.jobs()
        if "chief" not in jobs:
            host, _ = host_and_port(self.cluster.address(self.task))
            jobs["chief"] = [f"{host}:{_free_port()}"]
        self.strategy = PassesShards(
            tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(jobs), task_type="chief", task_id=0, rpc_layer="grpc"
            ),
            variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
                min_shard_bytes=_MIN_SHARD_BYTES, max_shards=partitions
            )
            if partitions > 1
            else None,
            heartbeat_timeout=self.heartbeat_timeout,
        )
        servers = [task for task in self.cluster.tasks() if task != self.task]
        heartbeat.watch_from_outside(
            {str(task): self.cluster.address(task) for task in servers}, self.heartbeat_timeout
        )
        # Keras asks for the strategy's coordinator, of which there is one, and finds this.
        self._coordinator = EpochCoordinator(self.strategy)

    def _distribute(self, dataset_fn: DatasetFunction, training: bool) -> tf.data.Dataset:
        makers = tuple(partial(dataset_fn, context) for context in self.input_contexts)
        shards = datasets.Shards(makers[0](), makers, trains=training)
        finite = int(shards.local.cardinality()) != datasets.INFINITE
        return datasets.for_keras(shards, datasets.UNKNOWN if finite else datasets.INFINITE)


def _prepare_keras_3(partitions: int) -> None:
    if partitions > 1:
        raise UsageError(
            "--variable_partitions",
            received=partitions,
            accepted="1 with Keras 3, whose variables cannot be divided",
            remedy="Install tf_keras and set TF_USE_LEGACY_KERAS=1, or leave the flag out.",
        )
    from tfdist.strategies import keras3_coordinated  # noqa: F401


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
