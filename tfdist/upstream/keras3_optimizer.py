"""Optimizers of Keras 3 that combine the gradients of all replicas before anything else.

    optimizer = reduce_gradients_first(keras.optimizers.Adam(clipnorm=1.0))

Keras 3 clips each replica's gradients, checks each replica's for overflow and accumulates each
replica's: other weights than those of one process with the whole batch. Keras 2 sums first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf


def reduce_gradients_first(optimizer: Any, dtype: str | None = None) -> Any:
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

    return apply_reduced(optimizer, sums)


def apply_reduced(optimizer: Any, reduce: Callable[[list[Any], list[Any]], list[Any]]) -> Any:
    """`optimizer`, which applies what `reduce` makes of the gradients.

    Args:
      optimizer: a `keras.optimizers.Optimizer` of Keras 3, which is changed.
      reduce: is given the gradients, of which some may be None, and their variables.
    """
    apply = optimizer.apply

    def call(grads: Iterable[Any], trainable_variables: Any = None) -> None:
        if trainable_variables is None:
            trainable_variables = optimizer._trainable_variables
        variables = list(trainable_variables)
        apply(reduce(list(grads), variables), variables)

    # An attribute of the instance: its class stays the one that a saved model names.
    optimizer.apply = call
    return optimizer


def is_wrapped(optimizer: Any) -> bool:
    """Whether `apply_reduced` was given this very optimizer, and not one within it."""
    return "apply" in vars(optimizer)
