"""`multi_worker_mirrored`: `tf.distribute.MultiWorkerMirroredStrategy`, synchronous all-reduce."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as tf_context

from tfdist.flags import JobFlags
from tfdist.strategies import datasets
from tfdist.strategies.base import DatasetFunction, Job
from tfdist.strategies.datasets import TakesShards
from tfdist.strategies.devices import use_devices

CommunicationImplementation = tf.distribute.experimental.CommunicationImplementation


# `tf.estimator` and TensorFlow's sessions tell this strategy by the name of its class.
class MultiWorkerMirroredStrategy(TakesShards, tf.distribute.MultiWorkerMirroredStrategy):
    """TensorFlow's, for datasets that are sharded already."""


class MultiWorkerMirrored(Job):
    """Every trainer with a copy of the variables; gradients meet in a ring or in NCCL."""

    name = "multi_worker_mirrored"

    def _set_up(self, options: JobFlags) -> None:
        self._agreements = 0
        implementation = (options.all_reduce or "auto").upper()
        use_devices(options.num_gpus)
        self.strategy = MultiWorkerMirroredStrategy(
            cluster_resolver=tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec(self.cluster.jobs()),
                task_type=self.task.type if self.cluster else None,
                task_id=self.task.index if self.cluster else None,
                rpc_layer="grpc",
            ),
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=CommunicationImplementation[implementation]
            ),
        )

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
        """True: variables that are summed when they are read take every task to save."""
        return True

    def start_equal(self, model: tf.keras.Model, epoch: int) -> int:
        self._check_equal("epoch", self._gather(epoch))
        return epoch

    def agreed(self, number: int) -> int:
        # Not by a collective: those of a session begin their counting where these would have been.
        context = tf_context.context()
        trainers = self.cluster.trainers
        self._agreements += 1
        names = [f"tfdist_agreement_{self._agreements}_{task}" for task in trainers]
        if len(trainers) > 1:
            context.set_config_key_value(names[trainers.index(self.task)], str(number))
            numbers = [int(context.get_config_key_value(name)) for name in names]
            self._check_equal("step", numbers)
        return number

    def _check_equal(self, unit: str, numbers: list[int]) -> None:
        if len(set(numbers)) > 1:
            found = ", ".join(
                f"{task} {unit} {number}"
                for task, number in zip(self.cluster.trainers, numbers, strict=True)
            )
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

        @tf.function
        def gather() -> Any:
            return self.strategy.run(
                lambda: tf.distribute.get_replica_context().all_gather(
                    tf.constant([number]), axis=0
                )
            )

        everywhere = self.strategy.experimental_local_results(gather())[0].numpy().tolist()
        return [int(value) for value in everywhere[:: self.num_local_replicas]]
