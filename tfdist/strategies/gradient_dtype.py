"""`--gradient_dtype`: sends gradients in a 16-bit dtype.

    optimizer = summed_in(tf.keras.optimizers.SGD(0.1), "bfloat16")

The Horovod strategy uses `hvd.Compression` instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError

GradientsAndVariables = list[tuple[Any, tf.Variable]]


def summed_in(optimizer: Any, dtype: str) -> Any:
    """Makes `optimizer` sum the gradients of a `tf.distribute` strategy's replicas in `dtype`.

    Args:
      optimizer: a `tf.keras.optimizers.Optimizer`; changed in place and returned.
      dtype: `float16` or `bfloat16`; the weights and their updates keep their own dtype.

    Raises:
      UsageError: the optimizer is of another class, such as a legacy optimizer.
    """
    # A LossScaleOptimizer aggregates gradients with its inner optimizer.
    own = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(own, tf.keras.optimizers.Optimizer):
        raise UsageError(
            "--gradient_dtype",
            received=f"{dtype} with {type(optimizer).__module__}.{type(optimizer).__name__}",
            accepted="only a tf.keras.optimizers.Optimizer that is not a legacy optimizer",
            remedy="Leave it out, or choose another optimizer.",
        )
    sum_over_replicas = own.aggregate_gradients

    def aggregate_gradients(pairs: Iterable[tuple[Any, tf.Variable]]) -> GradientsAndVariables:
        narrow = [(_cast(gradient, dtype), variable) for gradient, variable in pairs]
        summed = sum_over_replicas(narrow)
        return [(_cast(gradient, variable.dtype), variable) for gradient, variable in summed]

    # Keras has no other hook for the aggregation over replicas.
    own.aggregate_gradients = aggregate_gradients
    return optimizer


def _cast(gradient: Any, dtype: Any) -> Any:
    # A variable that does not contribute to the loss has no gradient; Keras warns about it.
    return None if gradient is None else tf.cast(gradient, dtype)
