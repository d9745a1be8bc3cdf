"""The datasets that a dataset was made from, for which `tf.data` has no public name."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf


def ancestors(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """All datasets that a dataset was made from, directly or not."""
    for parent in dataset._inputs():
        yield parent
        yield from ancestors(parent)
