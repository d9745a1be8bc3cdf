"""`TrainingData`: the data of a training, as `fit` and the strategy see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfdist.data import sharding
from tfdist.data.feed import Feed
from tfdist.errors import UsageError
from tfdist.strategies.base import Topology


@dataclass(frozen=True)
class TrainingData:
    """The training data of `fit`.

    Attributes:
      feed: the shards.
      element_spec: the `tf.TypeSpec` of the elements that Keras sees.
      cardinality: the steps per epoch, `sharding.UNKNOWN`, or `sharding.INFINITE`.
      workers: the shards, if workers read them; None if the training tasks do.
    """

    feed: Feed
    element_spec: Any
    cardinality: int
    workers: Topology | None

    @property
    def is_infinite(self) -> bool:
        """Whether the data is infinite."""
        return self.cardinality == sharding.INFINITE

    def check_length(
        self, steps_per_epoch: int | None, epochs: int, *, is_of_data: bool = False
    ) -> None:
        """Checks that the training data ends, or has enough batches for the requested steps.

        Keras would wait for the end of infinite data forever. It does not know the length of data
        that parameter servers read, and would leave out each second epoch.

        Args:
          steps_per_epoch: the number of steps that the user has given; None for all data.
          epochs: the number of epochs.
          is_of_data: whether `fit` gets this data. Only `job.fit` knows; a script in the long form
            may have called `job.dataset` several times.

        Raises:
          UsageError: the data is infinite, and the number of steps is not given; or the data has
            fewer steps; or that of parameter servers has fewer than all epochs together.
        """
        if steps_per_epoch is None:
            if self.is_infinite:
                raise UsageError(
                    "steps_per_epoch",
                    received=None,
                    accepted="a number of steps, because the training data has no end",
                    remedy="Pass steps_per_epoch to fit, or leave out dataset.repeat().",
                )
            return
        steps = self.cardinality if is_of_data else sharding.UNKNOWN
        needed = steps_per_epoch
        batches = int(self.feed.local.cardinality())
        if self.workers is not None and batches >= 0:
            # A shard may have one batch more than another.
            steps = (batches + 1) * self.workers.num_shards // self.workers.num_replicas
            needed *= epochs
        if 0 <= steps < needed:
            raise UsageError(
                "steps_per_epoch",
                received=f"{steps_per_epoch}, for {epochs} epochs of data with at most {steps} "
                "steps",
                accepted="None for finite data",
                remedy="Leave it out, or call dataset.repeat() in the input function.",
            )
