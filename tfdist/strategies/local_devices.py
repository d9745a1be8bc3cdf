"""The base class of `mirrored` and `central_storage`: one process, one replica per device."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.config.strategies.rows import LocalDevicesOptions
from tfdist.data import sharding
from tfdist.data.feed import Feed
from tfdist.process.devices import use_devices
from tfdist.strategies.base import Topology
from tfdist.strategies.replicated import Replicas


class LocalDevices(Replicas[LocalDevicesOptions]):
    """In-graph replication over the GPUs of one process, or over logical CPU devices.

    Attributes:
      kind: the class of the `tf.distribute.Strategy`; takes the devices, for one replica on each.
      devices: the replicas' devices, such as `GPU:0` or `CPU:0`.
    """

    kind: type[Any]
    devices: list[str]

    def build(self, options: LocalDevicesOptions) -> tf.distribute.Strategy:
        self.devices = use_devices(self.settings.num_gpus, options.num_cpu_devices)
        return self.kind(self.devices)

    @property
    def topology(self) -> Topology:
        own, replicas = str(self.task), int(self.tf_strategy.num_replicas_in_sync)
        return Topology(own, (own,), num_replicas=replicas, num_local_replicas=replicas)

    def distribute(self, feed: Feed) -> tf.data.Dataset:
        steps = sharding.steps_of([int(feed.local.cardinality())], self.topology.num_replicas)
        local = feed.local if steps == sharding.INFINITE else self.fill_last_step(feed)
        return sharding.for_keras(sharding.Shards(local), steps)

    def fill_last_step(self, feed: Feed) -> tf.data.Dataset:
        """The batches, such that TensorFlow makes the last step if a device has no batch left.

        A subclass adds empty batches if each device needs one.
        """
        batches = int(feed.local.cardinality())
        if batches >= 0 and batches % self.topology.num_replicas == 0:
            return feed.local
        return sharding.of_unknown_size(feed.local)
