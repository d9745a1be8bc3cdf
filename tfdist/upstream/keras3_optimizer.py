"""Makes Keras 3 optimizers combine the gradients of all replicas before anything else.

    optimizer = reduce_gradients_first(keras.optimizers.Adam(clipnorm=1.0))

Keras 3 clips, checks for overflow and accumulates each replica's gradients separately, so the
weights differ from those of one process with the global batch. Keras 2 sums the gradients first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import tensorflow as tf

from tfdist.upstream.collective_sparse_gradients import with_small_tables


def reduce_gradients_first(optimizer: Any, dtype: str | None = None) -> Any:
    """Makes an optimizer sum the replicas' gradients before it does anything else with them.

    Args:
      optimizer: a `keras.optimizers.Optimizer` of Keras 3; changed in place and returned.
      dtype: the dtype in which to send the gradients; default: their own.
    """
    inner = optimizer
    while hasattr(inner, "inner_optimizer"):
        inner = inner.inner_optimizer
    sum_pairs = inner._all_reduce_sum_gradients
    inner._all_reduce_sum_gradients = list

    def sums(gradients: list[Any], variables: list[Any]) -> list[Any]:
        if dtype is not None:
            gradients = [None if g is None else tf.cast(g, dtype) for g in gradients]
        summed = with_small_tables(gradients, variables, partial(sum_of, variables))
        pairs = zip(summed, variables, strict=True)
        return [None if g is None else tf.cast(g, v.dtype) for g, v in pairs]

    def sum_of(variables: list[Any], gradients: list[Any]) -> list[Any]:
        return [g for g, _ in sum_pairs(list(zip(gradients, variables, strict=True)))]

    return apply_reduced(optimizer, sums)


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
    optimizer.apply = call
    return optimizer


def variables_of(optimizer: Any, trainable_variables: Iterable[Any] | None = None) -> list[Any]:
    """The variables that `optimizer.apply` updates, given its argument; default: all of them."""
    if trainable_variables is None:
        trainable_variables = optimizer._trainable_variables
    return list(trainable_variables)


def is_wrapped(optimizer: Any) -> bool:
    """Whether `apply_reduced` was called with this optimizer itself, not with its inner one."""
    return "apply" in vars(optimizer)
