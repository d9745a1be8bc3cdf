"""Helpers for the differences between Keras 2 and 3; they inspect the objects they are given.

    keras_version(model)                # (3, 15, 1): the version of the model's Keras
    is_keras_3(optimizer)
    as_tensorflow(model.variables)      # tf.Variables, for any Keras

`tf.keras` is Keras 2 up to TensorFlow 2.15, and Keras 3 or tf_keras from 2.16 on. A model may also
come from a Keras other than `tf.keras`. `tfdist.compat.versions` has the supported versions.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

#: The packages whose models tfdist trains; `tf_keras` is Keras 2 for newer TensorFlow.
PACKAGES = ("keras", "tf_keras")


def keras_of(made_by_keras: Any) -> Any:
    """The package of a model, an optimizer or a class: `keras` or `tf_keras`.

    Raises:
      TypeError: the object comes from neither.
    """
    kind = made_by_keras if isinstance(made_by_keras, type) else type(made_by_keras)
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package in PACKAGES:
            return importlib.import_module(package)
    raise TypeError(f"{kind.__name__} is not a Keras class.")


def keras_version(made_by_keras: Any) -> tuple[int, ...]:
    """The version of the Keras of a model, an optimizer or a class.

    Raises:
      TypeError: the object does not come from Keras.
    """
    release = keras_of(made_by_keras).__version__.split(".")[:3]
    return tuple(int(part) for part in release if part.isdecimal())


def is_keras_3(made_by_keras: Any) -> bool:
    """Whether an object comes from Keras 3; False if it does not come from Keras."""
    try:
        return keras_version(made_by_keras) >= (3,)
    except TypeError:
        return False


def is_graph_of_layers(layer: Any) -> bool:
    """Whether a layer is a model whose layers Keras itself calls: Sequential or functional."""
    package = type(layer).__module__.partition(".")[0]
    is_known = package in PACKAGES and bool(getattr(layer, "inputs", None))
    return is_known and isinstance(layer, keras_of(layer).Model)


def layers_of(model: Any) -> list[Any]:
    """The layers of a model, in its order, without those that only stand for its inputs."""
    inputs = keras_of(model).layers.InputLayer
    return [layer for layer in model.layers if not isinstance(layer, inputs)]


def as_tensorflow(variables: Iterable[Any]) -> list[tf.Variable]:
    """The `tf.Variable` inside each Keras 3 variable; other variables unchanged."""
    # `value` is a method of TensorFlow's variables, but a property of Keras 3's.
    return [
        variable.value if isinstance(getattr(type(variable), "value", None), property) else variable
        for variable in variables
    ]


def has_call(model: Any) -> bool:
    """Whether a model defines `call`; a model with its own train step need not."""
    keras = keras_of(model)
    without = (keras.Model.call, keras.layers.Layer.call)
    return type(model).call not in without


def is_compiled(model: Any) -> bool:
    """Whether `compile` was called on a model."""
    if is_keras_3(model):
        return bool(model.compiled)
    return model.compiled_loss is not None


def without_vocabularies(variables: Iterable[Any]) -> list[Any]:
    """Variables without the tables of vocabulary layers.

    Keras 2 lists the table of an adapted layer, such as StringLookup, among the layer's variables.
    """
    return [variable for variable in variables if hasattr(variable, "dtype")]


def model_variables(model: Any) -> list[tf.Variable]:
    """The variables of a model, without the tables of vocabulary layers."""
    return as_tensorflow(without_vocabularies(model.variables))


def metric_variables(model: Any) -> list[Any]:
    """The variables of a compiled model's metrics."""
    return [variable for metric in model.metrics for variable in metric.variables]


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers that a model has: its own one, and those that it tracks.

    A train step with several models, such as a GAN's, has an optimizer for each. They are
    attributes of the model or of one of its layers, or lie in a list or dict there. An optimizer
    inside another one, such as a LossScaleOptimizer, does not count.
    """
    found = [getattr(model, "optimizer", None), *tracked_by(model)]
    # Of the class: a distributed variable reads its value in all tasks for an unknown attribute.
    optimizers = [each for each in found if hasattr(type(each), "apply_gradients")]
    inside = [id(part) for each in optimizers for part in _parts_of(each)]
    return list({id(each): each for each in optimizers if id(each) not in inside}.values())


def tracked_by(model: Any) -> list[Any]:
    """The objects that a model tracks, itself included, and what they have in lists and dicts."""
    import tensorflow as tf

    kinds = (tf.Module, keras_of(model).layers.Layer)
    found: dict[int, Any] = {}
    waiting = [model]
    while waiting:
        for tracked in tf.train.TrackableView(waiting.pop()).descendants():
            if id(tracked) in found and tracked is not model:
                continue
            found[id(tracked)] = tracked
            for value in getattr(tracked, "__dict__", {}).values():
                # TensorFlow does not track what Keras 3 has in lists and dicts.
                if isinstance(value, (list, tuple, dict)):
                    inside = list(value.values() if isinstance(value, dict) else value)
                    waiting += [
                        each for each in inside if isinstance(each, kinds) and id(each) not in found
                    ]
                    found |= {id(each): each for each in inside if not isinstance(each, kinds)}
    return list(found.values())


def inner_optimizers(optimizer: Any) -> list[Any]:
    """The optimizers that update the variables of an optimizer: itself, or those inside it.

    A LossScaleOptimizer has one inside it, and a MultiOptimizer of Keras 3 has several.
    """
    inner = [leaf for part in _parts_of(optimizer) for leaf in inner_optimizers(part)]
    return inner or [optimizer]


def _parts_of(optimizer: Any) -> list[Any]:
    inner = getattr(optimizer, "inner_optimizer", None)
    return list(getattr(optimizer, "optimizers", ())) if inner is None else [inner]


def optimizer_variables(optimizer: Any) -> list[tf.Variable]:
    """The variables of an optimizer, without a learning rate that Keras 2 keeps apart."""
    variables = optimizer.variables
    return as_tensorflow(variables() if callable(variables) else variables)


def hyperparameters(model: Any) -> dict[str, tf.Variable]:
    """The optimizers' hyperparameters that are variables, and so are part of checkpoints.

    These are the learning rates, except schedules and numbers. In Keras 2, a legacy optimizer has
    others, such as its momentum.
    """
    found: dict[str, Any] = {}
    updating = [inner for each in optimizers_of(model) for inner in inner_optimizers(each)]
    for number, inner in enumerate(updating, 1):
        suffix = f" of optimizer {number}" if number > 1 else ""
        with suppress(NotImplementedError):  # A schedule of the user need not have a configuration.
            config = {"learning_rate": None} | inner.get_config()
            # Keras 2 has the current value of a schedule in a variable.
            names = [name for name, value in config.items() if not isinstance(value, dict)]
            found |= {name + suffix: getattr(inner, name, None) for name in names}
    variables = zip(found, as_tensorflow(found.values()), strict=True)
    return {name: variable for name, variable in variables if hasattr(variable, "assign")}


def last_step(model: Any, step: int, steps: int | None) -> int:
    """The last step of the execution for which Keras called a callback.

    Keras 3 counts all steps of an execution, even if the data ends within it. Up to 3.10 it passes
    the first step to the callback.

    Args:
      model: a Keras model.
      step: the step that Keras passed to the callback, from 0.
      steps: the number of steps per epoch; None if it is unknown.
    """
    if (3,) <= keras_version(model) < (3, 11):
        step += model.steps_per_execution - 1
    return step if steps is None else min(step, steps - 1)


def iterators_per_epoch(model: Any, steps: int) -> int:
    """How many iterators over the training data `fit` creates per epoch; each one shuffles.

    Args:
      model: a Keras model.
      steps: the cardinality of the dataset that `fit` receives.
    """
    # Keras 3 creates another one when it has reached the known end of an epoch.
    return 2 if is_keras_3(model) and steps >= 0 else 1
