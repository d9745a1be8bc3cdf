"""Recognizes an optimizer of `hvd.DistributedOptimizer`, which has no class of its own.

    is_distributed(optimizer)

Horovod creates a class for each optimizer. With Keras 2 it is a class in Keras's module, and only a
private attribute identifies it.
"""

from __future__ import annotations

from typing import Any


def is_distributed(optimizer: Any) -> bool:
    """Whether an optimizer, or the one inside it, is from `hvd.DistributedOptimizer`."""
    own = getattr(optimizer, "inner_optimizer", optimizer)
    return any(
        type(each).__module__.startswith("horovod.") or hasattr(each, "_allreduce_grads")
        for each in (optimizer, own)
    )
