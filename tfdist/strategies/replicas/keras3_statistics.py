"""Averages non-trainable Keras 3 variables, such as moving statistics, over the replicas.

model.fit(…, callbacks=[Statistics(strategy)])
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import replace
from tfdist.compat.replica_states import differ, warn_of_own_states


class Statistics(tf.keras.callbacks.Callback):
    """Averages non-trainable variables over the replicas, and keeps them valid on empty batches.

    Does nothing for a Keras 2 model, because Keras 2 handles this itself.

    In Keras 3 each replica keeps its own variables, and the first replica's are saved. Because
    moving statistics are averages, averaging them once per epoch gives the same result as averaging
    them in every step. An empty batch, which a replica gets if others have more data, would make
    them NaN.
    """

    def __init__(self, strategy: tf.distribute.Strategy, *, is_chief: bool = True) -> None:
        super().__init__()
        self._is_chief = is_chief
        self._strategy = strategy
        # Traced only once for a model, because tracing takes longer than running it.
        self._average: Any = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._average = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not keras_compat.is_keras_3(self.model):
            return
        normalization = keras_compat.keras_of(self.model).layers.BatchNormalization
        for layer in tf.train.TrackableView(self.model).descendants():
            # Synchronized ones are valid in a replica without examples.
            if isinstance(layer, normalization) and not layer.synchronized:
                replace(layer, "_moments", _moments_of_examples(layer))

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.average()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.average()

    def average(self) -> None:
        """Sets the statistics of all replicas to their mean. Every task must call it."""
        if not keras_compat.is_keras_3(self.model):
            return
        variables = [
            variable
            for variable in keras_compat.as_tensorflow(self.model.non_trainable_variables)
            if variable.dtype.is_floating
        ]
        if not variables:
            return
        if self._average is None:
            average = partial(_averaged, variables)
            self._average = tf.function(lambda: self._strategy.run(average), autograph=False)
        differing = self._strategy.experimental_local_results(self._average())[0].numpy()
        if self._is_chief:
            warn_of_own_states(self.model, variables, differing)


def _moments_of_examples(layer: Any) -> Callable[..., tuple[Any, Any]]:
    """Wraps `BatchNormalization._moments`: an empty batch returns the moving statistics."""
    moments = layer._moments

    def call(inputs: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        mean, variance = moments(inputs, *arguments, **options)
        has_examples = tf.size(inputs) > 0
        return (
            tf.where(has_examples, mean, tf.cast(layer.moving_mean, mean.dtype)),
            tf.where(has_examples, variance, tf.cast(layer.moving_variance, variance.dtype)),
        )

    return call


@tf.autograph.experimental.do_not_convert
def _averaged(variables: list[tf.Variable]) -> tf.Tensor:
    """Sets the variables to their means, in replica context; returns which differed from them."""
    context = tf.distribute.get_replica_context()
    values = [variable.read_value() for variable in variables]
    means = context.all_reduce(tf.distribute.ReduceOp.MEAN, values)
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)
    return differ(values, means)
