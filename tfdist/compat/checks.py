"""Checks before the first step that a strategy can train a compiled Keras 3 model."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.config.strategies import StrategySpec
from tfdist.errors import UsageError
from tfdist.process.precision import CHOICES, FLOAT16

# Options that make an optimizer act only in some steps, inside a tf.cond. TensorFlow's strategies
# do not support cross-replica operations there.
_CONDITIONAL = {
    "gradient_accumulation_steps": "Leave it out of the optimizer; most strategies have the flag "
    "--accumulate_steps instead.",
    "ema_overwrite_frequency": "Leave it out of the optimizer, or train with tf_keras.",
}


def check_model_of_keras_3(model: Any, strategy: str) -> None:
    """Checks that a synchronous strategy trains a compiled Keras 3 model correctly.

    Raises:
      UsageError: an argument of `compile` makes Keras fail or compute wrong weights.
    """
    if model.steps_per_execution != 1:
        raise UsageError(
            "steps_per_execution",
            received=model.steps_per_execution,
            accepted=f"1 under {strategy} with Keras 3",
            remedy="Leave it out of model.compile: job.fit chooses it by the time of a step.",
        )
    for optimizer in keras_compat.optimizers_of(model):
        check_optimizer(optimizer, strategy)


def check_is_not_compiled_by_xla(model: Any, strategy: str) -> None:
    """Checks that XLA does not compile the steps of a model.

    Raises:
      UsageError: it does. It cannot compile what the replicas send each other.
    """
    if model.jit_compile:
        raise UsageError(
            "jit_compile",
            received=True,
            accepted=f"False under {strategy}",
            remedy="Leave it out of model.compile, and --jit_compile, or choose one_device.",
        )


def check_does_not_run_eagerly(model: Any, strategy: str) -> None:
    """Checks that the steps of a model are functions.

    Raises:
      UsageError: they are not. The strategy runs them on other tasks.
    """
    if model.run_eagerly:
        raise UsageError(
            "run_eagerly",
            received=True,
            accepted=f"False under {strategy}, which runs a step as one function",
            remedy="Leave it out of model.compile, or train with --strategy=one_device.",
        )


def check_no_state_of_a_replica(model: Any, strategy: str) -> None:
    """Checks that no recurrent layer keeps its state from one batch to the next.

    Raises:
      UsageError: one does. Its state belongs to a replica, but the replicas share all variables.
    """
    _check_is_false(
        "stateful",
        model,
        keras_compat.keras_of(model).layers.RNN,
        f"{strategy}, whose workers share all variables",
        "Train with --strategy=horovod, or with multi_worker_mirrored and Keras 3.",
    )


def check_no_synchronized_layer(model: Any, strategy: str) -> None:
    """Checks that no layer, such as a synchronized BatchNormalization, needs all replicas' batches.

    Raises:
      UsageError: one does, and a step does not exchange tensors before its gradients.
    """
    _check_is_false(
        "synchronized",
        model,
        keras_compat.keras_of(model).layers.Layer,
        strategy,
        "Train with horovod, mirrored or multi_worker_mirrored without --sync_period: their "
        "replicas exchange such statistics in each step.",
    )


def _check_is_false(name: str, model: Any, kind: Any, strategy: str, remedy: str) -> None:
    for layer in tf.train.TrackableView(model).descendants():
        if isinstance(layer, kind) and getattr(layer, name, None) is True:
            raise UsageError(
                name,
                received=f"True in layer {layer.name}",
                accepted=f"False under {strategy}",
                remedy=remedy,
            )


def check_scope(model: Any, strategy: tf.distribute.Strategy, name: str) -> None:
    """Checks that a compiled model, its optimizer and its metrics were created in the scope.

    Raises:
      UsageError: they were not. Tasks would train or evaluate independently, or count each step
        several times.
    """
    if model.distribute_strategy is not strategy:
        raise _outside_of_scope("model", name)
    for optimizer in keras_compat.optimizers_of(model):
        check_made_in_scope(optimizer, strategy, name)
    metrics = keras_compat.as_tensorflow(model.metrics_variables)
    if not all(map(strategy.extended.variable_created_in_scope, metrics)):
        raise _outside_of_scope("metrics", name)


def check_made_in_scope(optimizer: Any, strategy: tf.distribute.Strategy, name: str) -> None:
    """Checks that a Keras 3 optimizer was created in the strategy's scope.

    Raises:
      UsageError: it was not. Keras fails if such an optimizer has variables for each weight.
    """
    inner = keras_compat.inner_optimizers(optimizer)
    counters = keras_compat.as_tensorflow([each.iterations for each in inner])
    if not all(map(strategy.extended.variable_created_in_scope, counters)):
        raise _outside_of_scope("optimizer", name)


def _outside_of_scope(field: str, strategy: str) -> UsageError:
    return UsageError(
        field,
        received="created or compiled outside job.scope()",
        accepted=f"created and compiled in job.scope(), under {strategy} with Keras 3",
        remedy="Create the model, its optimizer and its metrics, and compile the model, in "
        "`with job.scope():`.",
    )


def check_precision(precision: str, spec: StrategySpec) -> None:
    """Checks that the losses of a strategy can be scaled, as float16 needs.

    Raises:
      UsageError: the optimizer that Keras wraps for float16 does not run under it.
    """
    is_refused = spec.shares_variables and not (
        spec.uses_ps and keras_compat.is_keras_3(tf.keras.Model)
    )
    if precision == FLOAT16 and is_refused:
        keras = keras_compat.keras_version(tf.keras.Model)[0]
        others = ", ".join(each for each in CHOICES if each != FLOAT16)
        raise UsageError(
            "--precision",
            received=precision,
            accepted=f"{others} under {spec.name}, where Keras {keras} does not scale losses",
            remedy="Choose one of these, or another strategy.",
        )


def check_optimizer(optimizer: Any, strategy: str) -> None:
    """Checks that a strategy with several replicas supports a Keras 3 optimizer.

    Raises:
      UsageError: it does not. Keras would fail in the first step.
    """
    for name in _CONDITIONAL:
        check_option(optimizer, name, strategy)


def check_option(optimizer: Any, name: str, strategy: str) -> None:
    """Checks that a Keras 3 optimizer has no option with which it acts only in some steps.

    Raises:
      UsageError: it has the option.
    """
    for inner in keras_compat.inner_optimizers(optimizer):
        received = getattr(inner, name, None)
        if received is not None:
            raise UsageError(
                name,
                received=received,
                accepted=f"None under {strategy} with Keras 3",
                remedy=_CONDITIONAL[name],
            )
