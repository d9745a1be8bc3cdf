"""The `one_device` strategy: one process on its first GPU or on the CPU, without distribution."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.config.options import Options
from tfdist.data.feed import Feed
from tfdist.process.devices import use_devices
from tfdist.strategies.base import Strategy, Topology


class OneDevice(Strategy[Options]):
    """Training without `tf.distribute`. The evaluator of every job also uses this class."""

    name = "one_device"

    def set_up(self, options: Options) -> None:
        use_devices(self.settings.num_gpus)
        self.tf_strategy = tf.distribute.get_strategy()

    @property
    def topology(self) -> Topology:
        own = str(self.task)
        return Topology(own, (own,), is_chief=not self.settings.evaluates)

    def wrap_optimizer(self, optimizer: Any) -> Any:
        return optimizer

    def distribute(self, feed: Feed) -> tf.data.Dataset:
        return feed.local
