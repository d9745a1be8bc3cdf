"""What Keras 3 needs to train under TensorFlow's synchronous strategies.

    class Strategy(ReducesForKeras3, tf.distribute.MultiWorkerMirroredStrategy): …
    optimizer = sums_first(keras.optimizers.Adam(clipnorm=1.0))
    model.fit(…, callbacks=[Statistics(strategy)])

Keras 2 does these things itself. `tests/keras3/test_upstream.py` will tell when Keras 3 does, too.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.errors import UsageError

# What an optimizer does with gradients before it sums them.
_NEED_SUMS = ("clipnorm", "clipvalue", "global_clipnorm")
# What it does in some steps alone, for which TensorFlow's strategies cannot leave a replica.
_CONDITIONAL = ("gradient_accumulation_steps", "ema_overwrite_frequency")
# Reductions of a loss over examples, of which each replica's is to be its part.
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


class ReducesForKeras3:
    """For a `tf.distribute.Strategy`: it does for Keras 3 what that leaves out.

    `reduce` takes two things that Keras 3 gives it; of all others TensorFlow is to judge.

    A batch is nested, and may be of another size in each replica. Keras wants to know its shapes
    and dtypes alone: each part becomes what it is in this task's first replica. And of the metrics
    of a step, which may be scalars, it asks the mean over the first dimension: it gets that over
    the replicas.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if keras_compat.is_keras_3(tf.keras.Model):
            weigh_scalar_losses()

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if reduce_op == "MEAN" and caller.startswith("keras."):
            if isinstance(value, dict | list | tuple):
                return tf.nest.map_structure(
                    lambda part: self.experimental_local_results(part)[0],  # type: ignore[attr-defined]
                    value,
                )
            axis = None
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]


def weigh_scalar_losses() -> None:
    """Lets a loss function of Keras 3 that returns a scalar count for a replica's part.

    Keras 3 divides by the number of replicas where it takes the mean itself, and then sums. And the
    mean over a batch without examples is not a number.
    """
    losses: Any = importlib.import_module("keras.src.losses.loss")
    reduce_values = losses.reduce_values
    if hasattr(reduce_values, "__wrapped__"):
        return

    @functools.wraps(reduce_values)
    def call(values: Any, sample_weight: Any = None, reduction: str | None = _MEANS[0]) -> Any:
        reduced = reduce_values(values, sample_weight, reduction)
        if tuple(values.shape) == () and reduction in _MEANS:
            reduced = losses.scale_loss_for_distribution(reduced)
        return reduced

    losses.reduce_values = call
    lose = losses.Loss.__call__

    @functools.wraps(lose)
    def of_examples(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        lost = lose(loss, y_true, y_pred, sample_weight)
        if tuple(lost.shape) == ():
            has_examples = tf.size(tf.nest.flatten(y_pred)[0]) > 0
            lost = tf.where(has_examples, lost, tf.zeros_like(lost))
        return lost

    losses.Loss.__call__ = of_examples


def sums_first(optimizer: Any, dtype: str | None = None) -> Any:
    """`optimizer`, which sums the replicas' gradients before it does anything else with them.

    Keras 3 clips each replica's gradients, checks each replica's for overflow and accumulates each
    replica's: other weights than those of one process with the whole batch. Keras 2 sums first.

    Args:
      optimizer: a `keras.optimizers.Optimizer` of Keras 3, which is changed.
      dtype: what the gradients are sent as; by default as they are.
    """
    inner = optimizer
    while hasattr(inner, "inner_optimizer"):
        inner = inner.inner_optimizer
    sum_pairs = inner._all_reduce_sum_gradients
    inner._all_reduce_sum_gradients = list

    def sums(gradients: list[Any], variables: list[Any]) -> list[Any]:
        if dtype is not None:
            gradients = [None if g is None else tf.cast(g, dtype) for g in gradients]
        pairs = sum_pairs(list(zip(gradients, variables, strict=True)))
        return [None if g is None else tf.cast(g, v.dtype) for g, v in pairs]

    return applies(optimizer, sums)


def applies(optimizer: Any, reduce: Callable[[list[Any], list[Any]], list[Any]]) -> Any:
    """`optimizer`, which applies what `reduce` makes of the gradients.

    Args:
      optimizer: a `keras.optimizers.Optimizer` of Keras 3, which is changed.
      reduce: is given the gradients, of which some may be None, and their variables.
    """
    apply = optimizer.apply

    def apply_reduced(grads: Iterable[Any], trainable_variables: Any = None) -> None:
        if trainable_variables is None:
            trainable_variables = optimizer._trainable_variables
        variables = list(trainable_variables)
        apply(reduce(list(grads), variables), variables)

    # An attribute of the instance: its class stays the one that a saved model names.
    optimizer.apply = apply_reduced
    return optimizer


def is_wrapped(optimizer: Any) -> bool:
    """Whether `applies` was given this very optimizer, and not one within it."""
    return "apply" in vars(optimizer)


def check(model: Any, strategy: str) -> None:
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
    optimizer = model.optimizer
    check_optimizer(optimizer, strategy)
    needs_sums = hasattr(optimizer, "inner_optimizer") or any(
        getattr(optimizer, name, None) is not None for name in _NEED_SUMS
    )
    if needs_sums and not is_wrapped(optimizer):
        raise UsageError(
            "optimizer",
            received=f"{type(optimizer).__name__} as it is",
            accepted=f"what job.optimizer returns, under {strategy} with Keras 3",
            remedy="Give model.compile job.optimizer(optimizer), which lets gradients be summed "
            "over the replicas before they are clipped, accumulated or checked for overflow; for "
            "float16 that of a LossScaleOptimizer.",
        )


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


def leave_saving_to_the_chief() -> None:
    """Lets `ModelCheckpoint` and `BackupAndRestore` of Keras 3 write nothing in this task.

    They know of no other task, and all would write into the same files. All restore from them.
    """
    callbacks = tf.keras.callbacks
    for kind, method in (
        (callbacks.ModelCheckpoint, "_save_model"),
        (callbacks.BackupAndRestore, "_save_model"),
        # Where it removes what it has saved.
        (callbacks.BackupAndRestore, "on_train_end"),
    ):
        if not hasattr(kind, method):
            raise AttributeError(f"{kind.__name__} of this Keras has no {method} to leave out.")
        setattr(kind, method, _do_nothing)


def _do_nothing(callback: Any, *arguments: Any, **options: Any) -> None:
    pass


class Statistics(tf.keras.callbacks.Callback):
    """Keeps what is not trained right over the replicas, such as moving statistics.

    Of no effect on a model of Keras 2, which sees to it by itself.

    Keras 3 lets each replica keep its own and saves those of the first. They are averages, so that
    to average them now and then is the same as to average them in every step. And a replica that
    is given an empty batch, because others have more data, makes them not a number.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        super().__init__()
        self._strategy = strategy
        self._average: Any = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._average = None if keras_compat.is_keras_3(model) else lambda: None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if not keras_compat.is_keras_3(self.model):
            return
        normalization = keras_compat.keras_of(self.model).layers.BatchNormalization
        layers = [
            layer
            for layer in self.model._flatten_layers()
            if isinstance(layer, normalization) and "_moments" not in vars(layer)
        ]
        for layer in layers:
            layer._moments = _moments_of_examples(layer)
        if layers:
            # A training before may have traced it.
            self.model.make_train_function(force=True)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.average()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.average()

    def average(self) -> None:
        """Makes the statistics of all replicas their mean; collective over the tasks."""
        if self._average is None:
            variables = [
                variable
                for variable in keras_compat.as_tensorflow(self.model.non_trainable_variables)
                if variable.dtype.is_floating
            ]
            self._average = _averaging(self._strategy, variables)
        self._average()


def _moments_of_examples(layer: Any) -> Callable[..., tuple[Any, Any]]:
    """`BatchNormalization._moments`; of a batch without examples, what the layer has already."""
    moments = layer._moments

    def call(inputs: Any, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        mean, variance = moments(inputs, *arguments, **options)
        has_examples = tf.size(inputs) > 0
        return (
            tf.where(has_examples, mean, tf.cast(layer.moving_mean, mean.dtype)),
            tf.where(has_examples, variance, tf.cast(layer.moving_variance, variance.dtype)),
        )

    return call


def _averaging(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> Any:
    if not variables:
        return lambda: None

    @tf.autograph.experimental.do_not_convert
    def average() -> None:
        context = tf.distribute.get_replica_context()
        values = [variable.read_value() for variable in variables]
        means = context.all_reduce(tf.distribute.ReduceOp.MEAN, values)
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)

    # Traced once, which takes longer than to run it.
    return tf.function(lambda: strategy.run(average), autograph=False)
