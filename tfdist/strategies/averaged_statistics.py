"""Averages what each replica has of its own, such as the moving statistics of batch normalization.

    AveragedStatistics(tf_strategy, mean_of, is_chief=True)      # a Keras callback

A layer whose state differs between the replicas and is read in training, such as a codebook of
moving averages, is named once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import log

# More than the rounding of a mean of equal values, also in 16 bits.
_TOLERANCE = 0.01
_WARNED = "_tfdist_has_own_states"


class AveragedStatistics(tf.keras.callbacks.Callback):
    """Averages non-trainable variables over all replicas.

    It does so after each epoch, before validation and before a checkpoint, so that the validated
    model is the saved model. Moving statistics are averages, so averaging them once per epoch gives
    the same result as averaging them in every step.

    Args:
      strategy: the `tf.distribute.Strategy` of this task's replicas.
      mean_of: takes the values of a replica; returns their means over the replicas of all tasks.
      is_chief: whether this task tells the user of a layer with a state of its own.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        mean_of: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]],
        *,
        is_chief: bool,
    ) -> None:
        super().__init__()
        self._strategy = strategy
        self._mean_of = mean_of
        self._is_chief = is_chief
        self._in_training = False
        # The variables of the last average, and the function that averages them, traced once.
        self._averaged: tuple[list[tf.Variable], Any] = ([], None)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._in_training = True

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._in_training = False

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        # An evaluation outside of training may run in only one task.
        if self._in_training:
            self.average()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.average()

    def average(self) -> None:
        """Sets the statistics of all replicas to their mean. Every task must call it."""
        states = keras_compat.without_vocabularies(self.model.non_trainable_variables)
        variables = [each for each in keras_compat.as_tensorflow(states) if each.dtype.is_floating]
        if not variables:
            return
        if list(map(id, variables)) != list(map(id, self._averaged[0])):
            in_replica = partial(_set_to_means, variables, self._mean_of)
            run = tf.function(lambda: self._strategy.run(in_replica), autograph=False)
            self._averaged = variables, run
        differing = self._strategy.experimental_local_results(self._averaged[1]())[0].numpy()
        if self._is_chief:
            warn_of_own_states(self.model, variables, differing)


@tf.autograph.experimental.do_not_convert
def _set_to_means(
    variables: list[tf.Variable], mean_of: Callable[[list[tf.Tensor]], Sequence[tf.Tensor]]
) -> tf.Tensor:
    """Sets the variables of a replica to their means; returns which differed from them."""
    values = [variable.read_value() for variable in variables]
    means = mean_of(values)
    for variable, mean in zip(variables, means, strict=True):
        variable.assign(mean)
    return differ(values, means)


def differ(values: Sequence[tf.Tensor], means: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether each value differs from its mean over the replicas: bool, shape [values]."""
    pairs = zip(values, means, strict=True)
    return tf.stack([tf.reduce_any(tf.abs(v - m) > _TOLERANCE * tf.abs(m)) for v, m in pairs])


def warn_of_own_states(
    model: Any, variables: Sequence[tf.Variable], differing: Iterable[Any]
) -> None:
    """Warns once about layers whose replicas assign their own values to a variable.

    The moving statistics of batch normalization do not count: no training step reads them.

    Args:
      model: the model.
      variables: non-trainable variables of the model.
      differing: for each of them, whether the values of the replicas differed.
    """
    layer_class = keras_compat.keras_of(model).layers.Layer
    owners = {
        id(variable): layer
        for layer in tf.train.TrackableView(model).descendants()
        if isinstance(layer, layer_class)
        for variable in keras_compat.as_tensorflow(layer.weights)
    }
    found = [owners.get(id(v)) for v, is_own in zip(variables, differing, strict=True) if is_own]
    names = {layer.name for layer in found if layer and not hasattr(layer, "moving_mean")}
    if names and _WARNED not in vars(model):
        vars(model)[_WARNED] = True
        log(
            f"warning: each replica assigns its own values to the state of layer {min(names)}, and "
            "tfdist averages them only at the end of an epoch, so the weights are not those of one "
            "process: average them in the layer, with an all-reduce over the replicas."
        )
