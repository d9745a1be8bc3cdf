"""The little in which Keras 2 and Keras 3 differ for tfdist, told by the objects themselves.

    keras_version(model)                # (3, 15, 1): of the Keras that made it
    is_keras_3(optimizer)
    as_tensorflow(model.variables)      # tf.Variables, whichever Keras made them

`tf.keras` is Keras 2 up to TensorFlow 2.15, and Keras 3 or tf_keras from 2.16 on; a model may also
come from one that `tf.keras` is not. `tfdist.compat.stacks` has what works with which.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

#: The packages whose models tfdist trains; `tf_keras` is Keras 2 for newer TensorFlow.
PACKAGES = ("keras", "tf_keras")


def keras_of(made_by_keras: Any) -> Any:
    """The package that a model, an optimizer or a class comes from: `keras` or `tf_keras`.

    Raises:
      TypeError: it comes from neither.
    """
    kind = made_by_keras if isinstance(made_by_keras, type) else type(made_by_keras)
    for base in kind.__mro__:
        package = base.__module__.partition(".")[0]
        if package in PACKAGES:
            return importlib.import_module(package)
    raise TypeError(f"{kind.__name__} is not made by Keras.")


def keras_version(made_by_keras: Any) -> tuple[int, ...]:
    """The version of the Keras that a model, an optimizer or a class comes from.

    Raises:
      TypeError: it comes from no Keras.
    """
    release = keras_of(made_by_keras).__version__.split(".")[:3]
    return tuple(int(part) for part in release if part.isdecimal())


def is_keras_3(made_by_keras: Any) -> bool:
    """Whether it comes from Keras 3; False where it comes from no Keras."""
    try:
        return keras_version(made_by_keras) >= (3,)
    except TypeError:
        return False


def as_tensorflow(variables: Iterable[Any]) -> list[tf.Variable]:
    """The `tf.Variable` within each variable of Keras 3; any other variable as it is."""
    # A method of TensorFlow's variables, and a property of those of Keras 3.
    return [
        variable.value if isinstance(getattr(type(variable), "value", None), property) else variable
        for variable in variables
    ]


def metric_variables(model: Any) -> list[Any]:
    """The variables of a compiled model's metrics."""
    return [variable for metric in model.metrics for variable in metric.variables]


def learning_rate_variable(optimizer: Any) -> tf.Variable | None:
    """The variable that holds the learning rate; None where that is a schedule or a number."""
    (rate,) = as_tensorflow([getattr(optimizer, "learning_rate", None)])
    return rate if hasattr(rate, "assign") else None


def last_step(model: Any, step: int, steps: int | None) -> int:
    """The last step of the execution after which Keras called a callback with `step`.

    Keras 3 counts all steps of an execution that the data did not fill, and up to 3.10 it calls
    with the first.

    Args:
      model: a Keras model.
      step: from 0.
      steps: those of the epoch; None where they are not known.
    """
    if (3,) <= keras_version(model) < (3, 11):
        step += model.steps_per_execution - 1
    return step if steps is None else min(step, steps - 1)


def iterators_per_epoch(model: Any, steps: int) -> int:
    """How many iterators over the training data `fit` makes for an epoch, and so how often they
    are shuffled.

    Args:
      model: a Keras model.
      steps: the cardinality of the dataset that `fit` is given.
    """
    # Keras 3 makes one more when it has counted an epoch's steps to their end.
    return 2 if is_keras_3(model) and steps >= 0 else 1


def iterators_before(model: Any, epoch: int, steps: int) -> int:
    """How many iterators `fit` has made before that of the epoch, which is counted from 0.

    Outside of the scope of a strategy; `model` and `steps` are those of `iterators_per_epoch`.
    """
    # Keras 2 makes one at first that it does not use.
    return epoch * iterators_per_epoch(model, steps) + (not is_keras_3(model))
