"""Wraps a model's train function so that a resumed epoch skips the steps that are done.

    model.train_function = after_skipping(model, 30)      # when `fit` has begun

Each wrapper restores the original function when it has skipped the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def forget(model: tf.keras.Model) -> None:
    """Makes Keras trace a model's steps again, after the model's methods have changed."""
    model.train_function = model.test_function = model.predict_function = None


def after_skipping(model: tf.keras.Model, steps: int) -> Callable[[Any], Any]:
    """A train function whose first call skips `steps` batches before its step."""
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


class AfterSkippedSteps:
    """A Keras 3 train function that does nothing in its first `executions` calls."""

    def __init__(self, model: tf.keras.Model, executions: int) -> None:
        self._model = model
        self._train = model.train_function
        self._left = executions

    def __call__(self, iterator: Any) -> Any:
        if self._left:
            self._left -= 1
            return {}
        self._model.train_function = self._train
        return self._train(iterator)


def is_skipping(model: tf.keras.Model) -> bool:
    """Whether the step that has just ended was skipped, because it was done before the restart."""
    return isinstance(model.train_function, AfterSkippedSteps)
