"""Where a training stands in its data: counts steps, and fast-forwards a resumed job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.train_functions import after_skipping
from tfdist.data import sharding


class EpochCursor:
    """The cursor of strategies under which Keras makes each step itself.

    Args:
      steps_of: gives the steps of an epoch from the batches of this task's shard; collective.
    """

    #: Whether Keras's callbacks see each step, which is then the same in all tasks.
    sees_steps = True

    def __init__(self, steps_of: Callable[[int], int]) -> None:
        self._steps_of = steps_of
        self._datasets: list[tf.data.Dataset] = []

    def follow(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Adds a dataset of this task to those that `fast_forward` shuffles; returns it."""
        self._datasets.append(dataset)
        return dataset

    def count_steps(self, dataset: tf.data.Dataset) -> int:
        """The steps of an epoch, found by reading this task's shard once; collective."""
        return self._steps_of(sharding.count_batches(dataset))

    def step_of_epoch(self, steps: Sequence[int]) -> int:
        """The step that Keras counts, from the steps that the reader of each shard has made."""
        return steps[0] if steps else 0

    def on_step_begin(self, call: Callable[[Callable[[], Sequence[int]]], None]) -> None:
        """Registers a function to call before each step where Keras's callbacks do not see steps.

        Its argument is a function that returns the steps that the reader of each shard has made.
        """

    def fast_forward(
        self, model: tf.keras.Model, epochs: int, steps: Sequence[int], *, cardinality: int
    ) -> None:
        """Brings the data to where they stood; called when `fit` has begun.

        Args:
          model: the model that is trained.
          epochs: the completed epochs; their shuffles are not repeated.
          steps: for each shard, the steps within the next epoch; empty for none.
          cardinality: that of the dataset that `fit` was given.
        """
        iterators = epochs * keras_compat.iterators_per_epoch(model, cardinality)
        for dataset in self._datasets:
            for _ in range(iterators):
                iter(dataset)
        skipped = self.step_of_epoch(steps)
        if skipped:
            model.train_function = after_skipping(model, skipped)
