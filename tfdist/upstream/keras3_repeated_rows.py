"""Makes Keras 3 optimizers sum the gradients of a row that a batch has several times.

apply()     # before an optimizer updates weights

The gradient of a table has a row for each occurrence of an index. Adam and others square each of
these rows, in place of their sum, and clipping takes the norm of all of them. Keras 2, and Keras 3
with JAX or PyTorch, use the sum.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.compat.gradients import distinct
from tfdist.upstream.wrapping import apply_wrapper


def apply() -> None:
    """Changes Keras's class; a second call changes nothing."""
    optimizers: Any = importlib.import_module("keras.src.optimizers.base_optimizer")
    apply_wrapper(optimizers.BaseOptimizer, "apply", _update_by_sums)


def _update_by_sums(
    update: Callable[..., None],
    optimizer: Any,
    grads: Iterable[Any],
    trainable_variables: Any = None,
) -> None:
    summed = [distinct(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
    update(optimizer, summed, trainable_variables)
