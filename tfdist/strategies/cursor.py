"""Tracks a training's position in its data: counts steps, and fast-forwards a resumed job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.train_functions import after_skipping
from tfdist.data import sharding


class EpochCursor:
    """The cursor for strategies where Keras runs each step itself."""

    #: Whether Keras's callbacks see each step; its number is then the same in all tasks.
    sees_steps = True

    def __init__(self) -> None:
        self._datasets: list[tf.data.Dataset] = []
        self._steps_made = 0

    @property
    def steps_made(self) -> int:
        """The number of weight updates of all trainings of this process."""
        return self._steps_made

    @property
    def progress(self) -> int:
        """A number that changes with every step. It may be read in any thread."""
        return self._steps_made

    @property
    def measured(self) -> dict[str, float]:
        """What is known of the steps of the last epoch, by name, for the chief's log: seconds,
        shares and counts."""
        return {}

    @property
    def steps_by_worker(self) -> dict[str, int]:
        """The steps of each worker in the last epoch, where they do not make the same ones."""
        return {}

    def saw_steps(self, steps: int) -> None:
        """Counts steps that Keras's callbacks have seen; call it only if `sees_steps`."""
        self._steps_made += steps

    def follow(self, dataset: tf.data.Dataset) -> None:
        """Registers a result of `Strategy.distribute` for `fast_forward`."""
        shards = sharding.shards_of(dataset)
        self._datasets.append(dataset if shards is None else shards.local)

    def step_of_epoch(self, steps: Sequence[int]) -> int:
        """Keras's step number, from the number of steps that each shard's reader has made."""
        return steps[0] if steps else 0

    def on_step_begin(self, call: Callable[[Callable[[], Sequence[int]], int], None]) -> None:
        """Registers a function to call before each execution, if Keras's callbacks see no steps.

        Args:
          call: takes a function that returns the number of steps that each shard's reader has made,
            and the number of steps of the execution (`steps_per_execution`).
        """

    def fast_forward(
        self, model: tf.keras.Model, epochs: int, steps: Sequence[int], *, cardinality: int
    ) -> None:
        """Moves the data to the position of a resumed job; called when `fit` has begun.

        Args:
          model: the model in training.
          epochs: the number of completed epochs; the shuffle orders of these are not reused.
          steps: for each shard, the number of steps in the next epoch; empty for none.
          cardinality: the cardinality of the dataset that `fit` received.
        """
        # It may take as long as the training, so an infinite dataset starts from its beginning.
        if cardinality == sharding.INFINITE:
            return
        iterators = epochs * keras_compat.iterators_per_epoch(model, cardinality)
        for dataset in self._datasets:
            for _ in range(iterators):
                iter(dataset)
        skipped = self.step_of_epoch(steps)
        if skipped:
            model.train_function = after_skipping(model, skipped)
