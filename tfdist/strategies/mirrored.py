"""`mirrored`: `tf.distribute.MirroredStrategy`, each device with a copy of the variables."""

from __future__ import annotations

import tensorflow as tf

from tfdist.data.sharding import TakesShards
from tfdist.strategies.in_graph import InGraph
from tfdist.upstream.keras3_reduce import ReducesForKeras3


class _MirroredStrategy(ReducesForKeras3, TakesShards, tf.distribute.MirroredStrategy):
    """TensorFlow's, for datasets that are sharded already, and for Keras 3."""


class Mirrored(InGraph):
    """Synchronous training on one machine's devices."""

    name = "mirrored"

    def build_over(self, devices: list[str]) -> tf.distribute.Strategy:
        return _MirroredStrategy(devices)
