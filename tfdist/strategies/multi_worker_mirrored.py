"""`multi_worker_mirrored`: `tf.distribute.MultiWorkerMirroredStrategy`, synchronous all-reduce."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as tf_context

from tfdist import compat, farewell
from tfdist.checkpoints import Position
from tfdist.flags import JobFlags
from tfdist.strategies import datasets, keras3
from tfdist.strategies.base import DatasetFunction
from tfdist.strategies.datasets import TakesShards
from tfdist.strategies.devices import use_devices
from tfdist.strategies.gradient_dtype import not_sent_in, summed_in
from tfdist.strategies.replicas import Replicas
from tfdist.strategies.step_logs import KeepsMetricResults
from tfdist.strategies.sync_on_read import on_read_variables, read_at_once

# The module of its protocol buffers moves with each TensorFlow.
CoordinatedJob = tf_context.coordination_config_pb2.CoordinatedJob
_SERVER_SECONDS = 5.0
CommunicationImplementation = tf.distribute.experimental.CommunicationImplementation


# `tf.estimator` and TensorFlow's sessions tell this strategy by the name of its class.
class MultiWorkerMirroredStrategy(
    keras3.ReducesForKeras3,
    KeepsMetricResults,
    TakesShards,
    tf.distribute.MultiWorkerMirroredStrategy,
):
    """TensorFlow's, for datasets that are sharded already, and for Keras 3."""


class KeyValueStore:
    """The key-value store of TensorFlow's coordination service, as a `tfdist.preemption.Board`."""

    def post(self, key: str, value: str) -> None:
        with contextlib.suppress(tf.errors.AlreadyExistsError):
            tf_context.context().set_config_key_value(key, value)

    def read(self, key: str, seconds: float) -> str | None:
        try:
            # 0 milliseconds would be for ever.
            milliseconds = max(1, round(1000 * seconds))
            value: str = tf_context.context().get_config_key_value(key, milliseconds)
        except tf.errors.DeadlineExceededError:
            return None
        return value


class MultiWorkerMirrored(Replicas):
    """Every trainer with a copy of the variables; gradients meet in a ring or in NCCL."""

    name = "multi_worker_mirrored"

    def _set_up(self, options: JobFlags) -> None:
        self._agreements = 0
        self._has_optimizer = False
        if compat.is_keras_3(tf.keras.Model) and self.cluster and self.task != self.cluster.leader:
            keras3.leave_saving_to_the_chief()
        implementation = (options.all_reduce or "auto").upper()
        trainers = self.cluster.trainers
        place = self.cluster.place_on_host(self.task, trainers) if trainers else (0, 1)
        devices = use_devices(options.num_gpus, place=place)
        if len(self.cluster.trainers) > 1:
            self._set_heartbeat(self.heartbeat_timeout)
            if self.task != self.cluster.leader:
                # TensorFlow tries again after a second where it has come too early.
                farewell.wait_for_server(self.cluster.address(self.cluster.leader), _SERVER_SECONDS)
        self.strategy = MultiWorkerMirroredStrategy(
            cluster_resolver=tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(self.cluster.jobs()),
                task_type=self.task.type if self.cluster else None,
                task_id=self.task.index if self.cluster else None,
                rpc_layer="grpc",
                # The strategy computes on the CPU unless it is told of GPUs.
                num_accelerators={"GPU": sum(name.startswith("GPU") for name in devices)},
            ),
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=CommunicationImplementation[implementation]
            ),
        )

    def optimizer(self, optimizer: Any) -> Any:
        self._has_optimizer = True
        if self._options.gradient_dtype and not compat.is_keras_3(optimizer):
            return summed_in(optimizer, self._options.gradient_dtype)
        return super().optimizer(optimizer)

    def check(self, model: tf.keras.Model) -> None:
        super().check(model)
        if self._options.gradient_dtype and not self._has_optimizer:
            raise not_sent_in(self._options.gradient_dtype, model.optimizer)

    def _distribute(self, dataset_fn: DatasetFunction, training: bool) -> tf.data.Dataset:
        local = dataset_fn(self.input_context)
        return datasets.for_keras(
            datasets.Shards(self._remembered(local)), self._steps(int(local.cardinality()))
        )

    @property
    def num_input_pipelines(self) -> int:
        return max(1, len(self.cluster.trainers))

    @property
    def input_pipeline_id(self) -> int:
        return self.cluster.trainers.index(self.task) if self.cluster else 0

    @property
    def train_distribute(self) -> tf.distribute.Strategy:
        return self.strategy

    @property
    def session_environment(self) -> dict[str, str]:
        return {"TF_CONFIG": self.cluster.tf_config(self.task)} if self.cluster else {}

    @property
    def num_local_replicas(self) -> int:
        return self.num_replicas // self.num_input_pipelines

    @property
    def saves(self) -> bool:
        """True: variables that are synchronised when they are read take every task to save."""
        return True

    def saving(self, model: tf.keras.Model) -> contextlib.AbstractContextManager[None]:
        return read_at_once(self.strategy, on_read_variables(model))

    def await_chief(self) -> None:
        self._gather(0)

    def start_equal(self, model: tf.keras.Model, position: Position) -> Position:
        self.strategy.model = model
        epochs = self._gather(position.epoch)
        steps = self._gather(self.step_of_epoch(position.steps))
        pairs = zip(epochs, steps, strict=True)
        self._check_equal([f"epoch {epoch} step {step}" for epoch, step in pairs])
        return position

    @property
    def board(self) -> KeyValueStore | None:
        return KeyValueStore() if len(self.cluster.trainers) > 1 else None

    def agreed(self, number: int) -> int:
        # Not by a collective: those of a session begin their counting where these would have been.
        if self.board is not None:
            self._agreements += 1
            key = f"tfdist_agreement_{self._agreements}"
            self.board.post(f"{key}.{self.task}", str(number))
            numbers = [
                self.board.read(f"{key}.{task}", self.startup_timeout)
                for task in self.cluster.trainers
            ]
            self._check_equal([f"step {number}" for number in numbers])
        return number

    def _set_heartbeat(self, seconds: float) -> None:
        """As TensorFlow does it when the strategy is built, and with the flag's time."""
        jobs = self.cluster.jobs()
        leader = self.cluster.leader
        tf_context.context().configure_coordination_service(
            service_type="standalone",
            service_leader=f"/job:{leader.type}/replica:0/task:{leader.index}",
            heartbeat_timeout_in_ms=round(1000 * seconds),
            coordinated_jobs=[
                CoordinatedJob(name=name, num_tasks=len(hosts)) for name, hosts in jobs.items()
            ],
        )

    def _check_equal(self, places: list[str]) -> None:
        if len(set(places)) > 1:
            pairs = zip(self.cluster.trainers, places, strict=True)
            found = ", ".join(f"{task} {place}" for task, place in pairs)
            raise RuntimeError(
                f"The tasks found different checkpoints to go on from ({found}): the output "
                "directory must be one that they all share."
            )

    def _steps(self, batches: int) -> int:
        """Steps of an epoch from this task's batches: as many as the longest shard needs."""
        gathered = self._gather(batches)
        if datasets.UNKNOWN in gathered:
            return datasets.UNKNOWN
        if datasets.INFINITE in gathered:
            return datasets.INFINITE
        return -(-max(gathered) // self.num_local_replicas)

    def _gather(self, number: int) -> list[int]:
        """This task's number and those of the others, in the order of the trainers."""
        gathered = self._gather_function(tf.constant(number, tf.int64))
        everywhere = self.strategy.experimental_local_results(gathered)[0].numpy().tolist()
        return [int(value) for value in everywhere[:: self.num_local_replicas]]

    @functools.cached_property
    def _gather_function(self) -> Any:
        # Traced once, which takes longer than to run it.
        @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
        def gather(number: tf.Tensor) -> Any:
            return self.strategy.run(
                lambda: tf.distribute.get_replica_context().all_gather(number[tf.newaxis], axis=0)
            )

        return gather
