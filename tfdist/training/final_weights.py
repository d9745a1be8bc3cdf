"""Keeps the weights that a training returns, if they are not those of its last checkpoint.

Callbacks such as `EarlyStopping(restore_best_weights=True)` change the weights after the last
epoch. A second start of the complete job must return what the first one returned, and a longer
training must go on from its last checkpoint. So these weights have a directory of their own.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.storage.checkpointer import Checkpointer


class FinalWeights(Checkpointer):
    """Saves and restores the final weights of a built model, in a directory of their own.

    The arguments are those of `Checkpointer`.
    """

    def __init__(self, model: tf.keras.Model, directory: Path, **options: Any) -> None:
        super().__init__(model, directory, keep=1, **options)
        self._weights = keras_compat.as_tensorflow(model.trainable_variables)
        self._saved: list[float] | None = None

    def epoch_saved(self) -> None:
        """Call this after the checkpoint of each epoch."""
        self._saved = self._sums()

    def have_changed(self) -> bool:
        """Whether the weights have changed since the last epoch that this process trained."""
        return self._saved is not None and self._saved != self._sums()

    def _sums(self) -> list[float]:
        return list(self._compute_sums().numpy())

    @functools.cached_property
    def _compute_sums(self) -> Any:
        # One call, because each operation on a parameter server would be one. Each sum is computed
        # where its weight is, without a copy: the model may be too large for this process.
        @tf.function(autograph=False)
        def compute() -> tf.Tensor:
            sums = []
            for weight in self._weights:
                with tf.device(weight.device):
                    sums.append(tf.cast(tf.reduce_sum(weight), tf.float64))
            return tf.stack(sums) if sums else tf.zeros([0], tf.float64)

        # TensorFlow warns if many functions with the same name are traced.
        return compute.get_concrete_function()
