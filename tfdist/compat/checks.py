"""Checks that a strategy can train a compiled model of Keras 3, before its first step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError

# What an optimizer does in some steps alone, for which TensorFlow's strategies cannot leave a
# replica.
_CONDITIONAL = ("gradient_accumulation_steps", "ema_overwrite_frequency")


def check_model_of_keras_3(model: Any, strategy: str) -> None:
    """Checks that a compiled model of Keras 3 is trained right under a synchronous strategy.

    Raises:
      UsageError: it is not: Keras fails with what `compile` was given, or gives other weights.
    """
    for field, received, accepted in (
        ("steps_per_execution", model.steps_per_execution, 1),
        ("jit_compile", model.jit_compile, False),
    ):
        if received != accepted:
            raise UsageError(
                field,
                received=received,
                accepted=f"{accepted} under {strategy} with Keras 3",
                remedy="Leave it out of model.compile, or train with tf_keras.",
            )
    check_optimizer(model.optimizer, strategy)


def check_scope(model: Any, strategy: tf.distribute.Strategy, name: str) -> None:
    """Checks that a compiled model is of the scope of the strategy, with all that it was given.

    Raises:
      UsageError: each task would train or judge by itself, or count each step several times.
    """
    if model.distribute_strategy is not strategy:
        raise _outside_of_scope("model", name)
    check_made_in_scope(model.optimizer, strategy, name)
    metrics = keras_compat.as_tensorflow(model.metrics_variables)
    if not all(map(strategy.extended.variable_created_in_scope, metrics)):
        raise _outside_of_scope("metrics", name)


def check_made_in_scope(optimizer: Any, strategy: tf.distribute.Strategy, name: str) -> None:
    """Checks that an optimizer of Keras 3 is of the scope of the strategy.

    Raises:
      UsageError: it is not; Keras fails where such an optimizer has variables for each weight.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if getattr(inner, "_distribution_strategy", strategy) is not strategy:
        raise _outside_of_scope("optimizer", name)


def _outside_of_scope(field: str, strategy: str) -> UsageError:
    return UsageError(
        field,
        received="made or compiled outside of job.scope()",
        accepted=f"what is of that scope, under {strategy} with Keras 3",
        remedy="Make the model, its optimizer and its metrics, and compile the model, within "
        "`with job.scope():`.",
    )


def check_optimizer(optimizer: Any, strategy: str) -> None:
    """Checks that an optimizer of Keras 3 is one that a strategy of several replicas can have.

    Raises:
      UsageError: Keras would fail in the first step, or apply the gradients several times.
    """
    if hasattr(optimizer, "optimizers"):
        raise UsageError(
            "optimizer",
            received=type(optimizer).__name__,
            accepted=f"one for all variables, under {strategy} with Keras 3",
            remedy="Choose one optimizer.",
        )
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for name in _CONDITIONAL:
        received = getattr(inner, name, None)
        if received is not None:
            raise UsageError(
                name,
                received=received,
                accepted=f"None under {strategy} with Keras 3",
                remedy="Leave it out of the optimizer, or train with tf_keras.",
            )
