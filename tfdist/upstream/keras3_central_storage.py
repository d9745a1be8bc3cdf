"""Corrects metrics and learning-rate schedules of Keras 3 models whose replicas share variables.

TensorFlow sums the values that replicas assign to a shared variable. A Keras 3 metric reads, adds
and assigns, so the old value counts once per replica. Keras also assigns the current rate of a
schedule in every replica.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.upstream.keras3_assign_add import add_in_one_operation
from tfdist.upstream.wrapping import apply_wrapper


def apply(model_class: Any, strategy_class: type) -> None:
    """Makes the metrics of models under a strategy count each replica's addition once.

    Args:
      model_class: `keras.Model`.
      strategy_class: the class of strategies whose replicas share variables.
    """
    for name in ("make_train_function", "make_test_function"):
        apply_wrapper(model_class, name, functools.partial(_count_once, strategy_class))


def share_learning_rate(optimizer: Any) -> None:
    """Assigns the current rate of a schedule once, although every replica assigns it."""
    rate = getattr(optimizer, "_current_learning_rate", None)
    if rate is not None:
        optimizer._current_learning_rate = tf.Variable(
            rate, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )


def _count_once(
    strategy_class: type, make: Callable[..., None], model: Any, force: bool = False
) -> None:
    if isinstance(model.distribute_strategy, strategy_class):
        # A function that was traced earlier counts incorrectly.
        force = add_in_one_operation(keras_compat.metric_variables(model)) or force
    make(model, force)
