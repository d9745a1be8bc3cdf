"""Makes Keras 3 optimizers combine the gradients of all replicas before anything else.

    sum_pairs = take_sum(optimizer)
    apply_reduced(optimizer, lambda gradients, variables: …)

Keras 3 clips, checks for overflow and accumulates each replica's gradients separately, so the
weights differ from those of one process with the global batch. Keras 2 sums the gradients first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import replace
from tfdist.upstream import keras3_missing_gradients


def take_sum(optimizer: Any) -> Callable[[list[tuple[Any, Any]]], list[tuple[Any, Any]]]:
    """Removes the sum over replicas from an optimizer, and returns it.

    Args:
      optimizer: a `keras.optimizers.Optimizer` of Keras 3; changed in place.

    Returns:
      The function that takes pairs of gradients and variables, and returns the sums in pairs.
    """
    inner = keras_compat.inner_optimizers(optimizer)
    sum_pairs: Any = inner[0]._all_reduce_sum_gradients
    keras3_missing_gradients.apply()
    for each in inner:
        replace(each, "_all_reduce_sum_gradients", list)
    return sum_pairs


def apply_reduced(optimizer: Any, reduce: Callable[[list[Any], list[Any]], list[Any]]) -> Any:
    """Makes an optimizer apply the result of `reduce` instead of the gradients themselves.

    Args:
      optimizer: a `keras.optimizers.Optimizer` of Keras 3; changed in place and returned.
      reduce: takes the gradients, some of which may be None, and their variables; returns the
        reduced gradients.
    """
    apply = optimizer.apply

    def call(grads: Iterable[Any], trainable_variables: Any = None) -> None:
        variables = variables_of(optimizer, trainable_variables)
        apply(reduce(list(grads), variables), variables)

    # Set on the instance, so that the class, which a saved model names, does not change.
    replace(optimizer, "apply", call)
    return optimizer


def variables_of(optimizer: Any, trainable_variables: Iterable[Any] | None = None) -> list[Any]:
    """The variables that `optimizer.apply` updates, given its argument; default: all of them."""
    if trainable_variables is None:
        trainable_variables = optimizer._trainable_variables
    return list(trainable_variables)
