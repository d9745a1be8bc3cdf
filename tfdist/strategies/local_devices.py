"""The base class of `mirrored` and `central_storage`: one process, one replica per device."""

from __future__ import annotations

import tensorflow as tf

from tfdist.config.strategies.rows import LocalDevicesOptions
from tfdist.data import sharding
from tfdist.process.devices import use_devices
from tfdist.strategies.base import DatasetFunction, Topology
from tfdist.strategies.replicated import Replicas


class LocalDevices(Replicas[LocalDevicesOptions]):
    """In-graph replication over the GPUs of one process, or over logical CPU devices.

    Attributes:
      devices: the replicas' devices, such as `GPU:0` or `CPU:0`.
    """

    devices: list[str]

    def build(self, options: LocalDevicesOptions) -> tf.distribute.Strategy:
        self.devices = use_devices(self.settings.num_gpus, options.num_cpu_devices)
        return self.build_over(self.devices)

    def build_over(self, devices: list[str]) -> tf.distribute.Strategy:
        """Builds the `tf.distribute.Strategy` with one replica on each device."""
        raise NotImplementedError

    @property
    def topology(self) -> Topology:
        own, replicas = str(self.task), int(self.tf_strategy.num_replicas_in_sync)
        return Topology(own, (own,), num_replicas=replicas, num_local_replicas=replicas)

    def distribute(self, dataset_fn: DatasetFunction, *, training: bool) -> tf.data.Dataset:
        context, replicas = self.topology.input_context, self.topology.num_replicas
        local = dataset_fn(context)
        steps = int(local.cardinality())
        if steps >= 0:
            steps = -(-steps // replicas)
        if steps != sharding.INFINITE:
            local = self.fill_last_step(local, dataset_fn(context))
        return sharding.for_keras(sharding.Shards(local), steps)

    def fill_last_step(self, local: tf.data.Dataset, source: tf.data.Dataset) -> tf.data.Dataset:
        """Adds what the engine needs if the last step has no batch for some device.

        Args:
          local: the batches.
          source: another dataset of the same batches, to read examples from.

        Returns:
          The extended dataset; by default `local` itself.
        """
        return local
