"""Distributes datasets whose shards have the same number of batches, without asking in each step.

    with without_checks(strategy):
        strategy.distribute_datasets_from_function(…)

In each step, the iterators of `MultiWorkerMirroredStrategy` sum over all tasks how many of them
have a batch, also if the number of batches is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf


@contextmanager
def without_checks(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Applies to the datasets that are distributed within."""
    strategy.extended.experimental_enable_get_next_as_optional = False
    try:
        yield
    finally:
        strategy.extended.experimental_enable_get_next_as_optional = True
