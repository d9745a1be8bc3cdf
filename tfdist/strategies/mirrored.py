"""The `mirrored` strategy: one replica and one copy of the variables on each local device."""

from __future__ import annotations

import tensorflow as tf

from tfdist.data.sharding import TakesShards
from tfdist.strategies.local_devices import LocalDevices
from tfdist.upstream.keras3_reduce import ReducesForKeras3


class _MirroredStrategy(ReducesForKeras3, TakesShards, tf.distribute.MirroredStrategy):
    """TensorFlow's strategy, with support for sharded datasets and Keras 3."""


class Mirrored(LocalDevices):
    """Synchronous training on the devices of one machine."""

    name = "mirrored"
    kind = _MirroredStrategy
