"""Compares the weights of all replicas at the end of each epoch.

    callbacks = [EqualWeights(strategy, collectives.broadcast)]

A step that moves the weights by the gradients of each replica and moves them back, such as SAM
(Foret et al. 2021, arXiv:2010.01412), leaves replicas that differ by rounding and drift apart.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import log
from tfdist.strategies.base import Strategy


class EqualWeights(tf.keras.callbacks.Callback):
    """Says once that the weights of replicas differ, and makes those of all tasks equal.

    Args:
      strategy: the strategy of the model; its chief tells the user.
      broadcast: gives all tasks the chief's values of variables; None if the tasks keep their own.
    """

    def __init__(
        self,
        strategy: Strategy[Any],
        broadcast: Callable[[list[tf.Variable]], None] | None = None,
    ) -> None:
        super().__init__()
        self._strategy = strategy
        self._broadcast = broadcast
        self._says = strategy.topology.is_chief

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        weights = keras_compat.as_tensorflow(self.model.trainable_variables)
        digests: dict[int, int] = {}  # By the number of the replica in this task.
        for weight in weights:
            copies = self._strategy.tf_strategy.experimental_local_results(weight)
            for place, copy in enumerate(copies):
                digests[place] = zlib.crc32(copy.numpy().tobytes(), digests.get(place, 0))
        # Different numbers in one task stand for a difference.
        own = digests[0] if len({*digests.values()}) == 1 else -1
        found = {*self._strategy.gather(own)} if digests else {0}
        if len(found) == 1 and -1 not in found:
            return
        if self._broadcast is not None:
            self._broadcast(weights)
        if self._says:
            self._says = False
            log(
                "warning: the weights of the replicas differ, as after a step that moves them by "
                "the gradients of each replica and moves them back: the checkpoints have those of "
                "the chief"
            )
