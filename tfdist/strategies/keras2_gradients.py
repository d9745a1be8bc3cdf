"""Sums the gradients of the replicas of a Keras 2 optimizer: small tables, and `--gradient_dtype`.

    optimizer = reduce_gradients(tf.keras.optimizers.SGD(0.1), "bfloat16")

For Keras 3 see `tfdist.upstream.keras3_optimizer`. The Horovod strategy sums gradients by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.upstream.collective_sparse_gradients import with_small_tables

GradientsAndVariables = list[tuple[Any, tf.Variable]]


def reduce_gradients(optimizer: Any, dtype: str | None = None) -> Any:
    """Makes `optimizer` sum small tables with the dense gradients, in a dtype if one is given.

    Args:
      optimizer: a `tf.keras.optimizers.Optimizer`; changed in place and returned. Another
        optimizer, such as a legacy one, keeps its own way.
      dtype: the dtype in which to send the gradients, `float16` or `bfloat16`; the weights and
        their updates keep their own dtype. None: the dtype of the gradients.

    Raises:
      UsageError: there is a dtype, and the optimizer is of another class.
    """
    # A LossScaleOptimizer aggregates gradients with its inner optimizer.
    own = getattr(optimizer, "inner_optimizer", optimizer)
    if not isinstance(own, tf.keras.optimizers.Optimizer):
        if dtype is None:
            return optimizer
        raise UsageError(
            "--gradient_dtype",
            received=f"{dtype} with {type(optimizer).__module__}.{type(optimizer).__name__}",
            accepted="only a tf.keras.optimizers.Optimizer that is not a legacy optimizer",
            remedy="Leave it out, or choose another optimizer.",
        )
    sum_pairs = own.aggregate_gradients

    def aggregate_gradients(pairs: Iterable[tuple[Any, tf.Variable]]) -> GradientsAndVariables:
        pairs = list(pairs)
        variables = [variable for _, variable in pairs]

        def sum_of(gradients: list[Any]) -> list[Any]:
            return [g for g, _ in sum_pairs(list(zip(gradients, variables, strict=True)))]

        # A variable that does not contribute to the loss has no gradient; Keras warns about it.
        sent = [None if g is None else tf.cast(g, dtype or g.dtype) for g, _ in pairs]
        summed = with_small_tables(sent, variables, sum_of)
        return [
            (None if g is None else tf.cast(g, v.dtype), v)
            for g, v in zip(summed, variables, strict=True)
        ]

    # Keras has no other hook for the aggregation over replicas.
    own.aggregate_gradients = aggregate_gradients
    return optimizer
