"""Keras's train function, for an epoch that is not read from its beginning.

    model.train_function = after_skipping(model, 30)    # when `fit` has begun

Each puts Keras's own back when it has done its part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def after_skipping(model: tf.keras.Model, steps: int) -> Callable[[Any], Any]:
    """Keras's train function, whose first call reads over what so many steps have read."""
    train = model.train_function

    @tf.function
    def skip(iterator: Any) -> None:
        next(iterator)

    def train_after_skipping(iterator: Any) -> Any:
        for _ in range(steps):
            skip(iterator)
        model.train_function = train
        return train(iterator)

    return train_after_skipping


def after_passing_over(model: tf.keras.Model, executions: int) -> Callable[[Any], Any]:
    """The train function, which does nothing in its first calls: so many of Keras 3's."""
    train, left = model.train_function, executions

    def train_after_passing_over(iterator: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            return {}
        model.train_function = train
        return train(iterator)

    return train_after_passing_over


def reading(
    model: tf.keras.Model, dataset: tf.data.Dataset, batches_per_step: int
) -> Callable[[Any], Any]:
    """Keras's train function, which reads this dataset in the place of the first epoch's."""
    train, own_iterator = model.train_function, iter(dataset)
    replaced: Any = None

    def train_on_dataset(iterator: Any) -> Any:
        nonlocal replaced
        # Keras has a new iterator for each epoch.
        if replaced is None:
            replaced = iterator
        elif iterator is not replaced:
            model.train_function = train
            return train(iterator)
        for _ in range(batches_per_step):
            logs = train(own_iterator)
        return logs

    return train_on_dataset
