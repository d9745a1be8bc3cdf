"""What `mirrored` and `central_storage` share: one process, a replica on each of its devices."""

from __future__ import annotations

import tensorflow as tf

from tfdist.flags import JobFlags
from tfdist.strategies import datasets
from tfdist.strategies.base import DatasetFunction
from tfdist.strategies.devices import use_devices
from tfdist.strategies.replicas import Replicas


class InGraph(Replicas):
    """In-graph replication over the GPUs of one process, or over logical CPU devices."""

    def _set_up(self, options: JobFlags) -> None:
        self._devices = use_devices(options.num_gpus, options.num_cpu_devices or 1)
        self.strategy = self._build(self._devices)

    @property
    def train_distribute(self) -> tf.distribute.Strategy:
        return self.strategy

    @property
    def session_config(self) -> tf.compat.v1.ConfigProto:
        config = super().session_config
        config.device_count["CPU"] = sum(name.startswith("CPU") for name in self._devices) or 1
        return config

    def _build(self, devices: list[str]) -> tf.distribute.Strategy:
        raise NotImplementedError

    def _distribute(self, dataset_fn: DatasetFunction, training: bool) -> tf.data.Dataset:
        context = tf.distribute.InputContext(num_replicas_in_sync=self.num_replicas)
        local = dataset_fn(context)
        steps = int(local.cardinality())
        if steps >= 0:
            steps = -(-steps // self.num_replicas)
        if steps != datasets.INFINITE:
            local = self._fill_last_step(local, dataset_fn(context), training)
        return datasets.for_keras(datasets.Shards(self._remembered(local)), steps)

    def _fill_last_step(
        self, local: tf.data.Dataset, source: tf.data.Dataset, training: bool
    ) -> tf.data.Dataset:
        """`local`, with what the engine needs where a batch for each device does not come out."""
        return local
