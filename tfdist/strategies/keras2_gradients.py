"""Makes a Keras 2 optimizer combine the gradients of all replicas by a function.

    reduce_gradients(tf.keras.optimizers.SGD(0.1), lambda gradients, variables: …)

For Keras 3 see `tfdist.upstream.keras3_optimizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.compat.replaced import replace


def aggregation_of(optimizer: Any) -> tuple[Any, str] | None:
    """The object and the name of its attribute that sums the gradients over replicas.

    A LossScaleOptimizer aggregates gradients with its inner optimizer, and a legacy optimizer has
    an argument for it.

    Args:
      optimizer: a Keras 2 optimizer.

    Returns:
      None if the optimizer has neither.
    """
    own = getattr(optimizer, "inner_optimizer", optimizer)
    for name in ("aggregate_gradients", "gradient_aggregator"):
        if hasattr(own, name):
            return own, name
    return None


def reduce_gradients(
    optimizer: Any, reduce: Callable[[list[Any], list[tf.Variable]], list[Any]]
) -> Any:
    """Makes `optimizer` apply the result of `reduce` instead of the gradients themselves.

    Args:
      optimizer: a Keras 2 optimizer; changed in place and returned.
      reduce: takes the gradients, some of which may be None, and their variables; returns the
        reduced gradients.
    """
    found = aggregation_of(optimizer)

    @tf.autograph.experimental.do_not_convert
    def aggregate(pairs: Iterable[tuple[Any, tf.Variable]]) -> list[tuple[Any, tf.Variable]]:
        pairs = list(pairs)
        variables = [variable for _, variable in pairs]
        reduced = reduce([gradient for gradient, _ in pairs], variables)
        return list(zip(reduced, variables, strict=True))

    if found is not None:
        replace(*found, aggregate)
    return optimizer
