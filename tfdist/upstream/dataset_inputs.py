"""Finds the datasets that a dataset was derived from; `tf.data` has no public API for this."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf


def ancestors(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """All datasets that a dataset was derived from, directly or indirectly."""
    for parent in dataset._inputs():
        yield parent
        yield from ancestors(parent)
