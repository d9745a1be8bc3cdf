"""The `mirrored` strategy for Estimators."""

from __future__ import annotations

import tensorflow as tf

from tfdist.estimator.sessions import Sessions
from tfdist.strategies.local_devices import LocalDevices
from tfdist.upstream import keras_optimizer_iterations


class MirroredSessions(Sessions):
    """Sessions over the devices of one process."""

    strategy: LocalDevices

    @property
    def train_distribute(self) -> tf.distribute.Strategy:
        keras_optimizer_iterations.apply()
        return self.strategy.tf_strategy

    @property
    def config(self) -> tf.compat.v1.ConfigProto:
        config = super().config
        devices = self.strategy.devices
        config.device_count["CPU"] = sum(name.startswith("CPU") for name in devices) or 1
        return config
