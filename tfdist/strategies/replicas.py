"""What strategies share under which TensorFlow sums the gradients of all replicas in each step."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.strategies import keras3
from tfdist.strategies.base import Job


class Replicas(Job):
    """The part of a `Job` that its subclasses share: what Keras 3 leaves to others."""

    def optimizer(self, optimizer: Any) -> Any:
        if compat.is_keras_3(optimizer):
            keras3.check_made_in_scope(optimizer, self.strategy, self.name)
            return keras3.sums_first(optimizer, self._options.gradient_dtype)
        return optimizer

    def check(self, model: tf.keras.Model) -> None:
        super().check(model)
        if compat.is_keras_3(model):
            keras3.check(model, self.name)
            keras3.check_scope(model, self.strategy, self.name)

    def engine_callbacks(self) -> list[tf.keras.callbacks.Callback]:
        return [self._statistics]

    def make_equal(self) -> None:
        self._statistics.average()

    @cached_property
    def _statistics(self) -> keras3.Statistics:
        return keras3.Statistics(self.strategy)
