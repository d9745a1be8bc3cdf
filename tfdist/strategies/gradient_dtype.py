"""`--gradient_dtype`: gradients that are sent with fewer bits than they are computed with.

    optimizer = summed_in(tf.keras.optimizers.SGD(0.1), "bfloat16")

Horovod has its own way for this, `hvd.Compression`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError

GradientsAndVariables = list[tuple[Any, tf.Variable]]


def summed_in(optimizer: Any, dtype: str) -> Any:
    """`optimizer`, which sums the gradients of a `tf.distribute` strategy's replicas in `dtype`.

    Args:
      optimizer: a `tf.keras.optimizers.Optimizer`, which is changed.
      dtype: `float16` or `bfloat16`; the weights and their updates keep their own.

    Raises:
      UsageError: the optimizer is of another kind, such as a legacy one.
    """
    # What scales the loss lets the optimizer within it do the rest.
    own = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(own, tf.keras.optimizers.Optimizer):
        raise UsageError(
            "--gradient_dtype",
            received=f"{dtype} with {type(optimizer).__module__}.{type(optimizer).__name__}",
            accepted="only with a tf.keras.optimizers.Optimizer that is not a legacy one",
            remedy="Leave it out, or choose another optimizer.",
        )
    sum_over_replicas = own.aggregate_gradients

    def aggregate_gradients(pairs: Iterable[tuple[Any, tf.Variable]]) -> GradientsAndVariables:
        narrow = [(_cast(gradient, dtype), variable) for gradient, variable in pairs]
        summed = sum_over_replicas(narrow)
        return [(_cast(gradient, variable.dtype), variable) for gradient, variable in summed]

    # An attribute of the instance: Keras has no other place for what happens between replicas.
    own.aggregate_gradients = aggregate_gradients
    return optimizer


def _cast(gradient: Any, dtype: Any) -> Any:
    # A variable without a part in the loss has none; Keras warns of it.
    return None if gradient is None else tf.cast(gradient, dtype)
