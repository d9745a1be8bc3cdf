"""`mirrored`: `tf.distribute.MirroredStrategy`, each device with a copy of the variables."""

from __future__ import annotations

import tensorflow as tf

from tfdist.strategies.datasets import TakesShards
from tfdist.strategies.in_graph import InGraph
from tfdist.strategies.keras3 import ReducesForKeras3


class _Strategy(ReducesForKeras3, TakesShards, tf.distribute.MirroredStrategy):
    pass


class Mirrored(InGraph):
    """Synchronous training on one machine's devices."""

    name = "mirrored"

    def _build(self, devices: list[str]) -> tf.distribute.Strategy:
        return _Strategy(devices)
