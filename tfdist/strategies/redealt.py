"""What is left of an epoch whose data were dealt out to other numbers of ranks before.

    position.earlier                   # ((2, 30), (1, 10)): 2 ranks made 30 steps, then 1 made 10
    rest = rest_of_epoch(shard, counts, position, ranks=3, rank=0, usual_steps=50)
    rest.train(model, 0)               # in the epoch of `fit` that begins

The first of these numbers of ranks has sharded the data; their batches are the unit. Whenever the
number changes, what is left of the ranks' hands is laid end to end and cut into as many consecutive
parts as there are ranks now: consecutive, so that a rank need not read all of the shards.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfdist.checkpoints import Position
from tfdist.strategies import datasets
from tfdist.strategies.train_functions import reading

#: Which of a shard's batches, counted from 0.
Piece = tuple[int, range]
#: The batches of one rank, in the order in which it trains on them.
Hand = list[Piece]


@dataclass(frozen=True)
class Rest:
    """One rank's part in what is left of an epoch, and how Keras counts its steps.

    Keras takes an epoch to have as many steps as any other, so that the steps of this one are
    counted to end with the usual number. Where more batches are left than that, as when the batches
    of the earlier ranks were smaller, each of Keras's steps trains on several.

    Attributes:
      dataset: the rank's batches, filled up to be as many as every other rank's.
      first_step: Keras's number of the first step.
      batches_per_step: how many batches each of Keras's steps trains on.
    """

    dataset: tf.data.Dataset
    first_step: int
    batches_per_step: int

    def batches(self, step: int) -> int:
        """The batches that have been trained on before Keras's step of that number."""
        return (step - self.first_step) * self.batches_per_step

    def step(self, batches: int) -> int:
        """Keras's number of the step after so many batches."""
        return self.first_step + batches // self.batches_per_step

    def train(self, model: tf.keras.Model, batches: int) -> None:
        """Makes the epoch that begins train on this dataset, but for so many of its batches."""
        left = self.dataset.skip(batches)
        model.train_function = reading(model, left, self.batches_per_step)


def rest_of_epoch(
    shard: Callable[[int], tf.data.Dataset],
    counts: Sequence[int],
    position: Position,
    *,
    ranks: int,
    rank: int,
    usual_steps: int,
    iterators: int,
) -> Rest:
    """What is left of an epoch for one of the ranks that go on with it.

    Args:
      shard: makes one of the shards of the first number of ranks, by its index: a new dataset each
        time, which shuffles as in a new job.
      counts: the batches of each of these shards.
      position: where the training stands, with the earlier parts of the epoch.
      ranks: how many ranks go on now.
      rank: which of them this is.
      usual_steps: the steps of an epoch of theirs.
      iterators: how many over each of these shards Keras had made before it read this epoch.
    """

    def shard_in_epoch(index: int) -> tf.data.Dataset:
        return _after_iterators(shard(index), iterators)

    hands = deal(counts, [*position.earlier, (ranks, 0)])
    longest = max(map(_size, hands))
    batches_per_step = max(1, -(-longest // usual_steps))
    steps = -(-longest // batches_per_step)
    dataset = _read(hands[rank], shard_in_epoch)
    lacking = steps * batches_per_step - _size(hands[rank])
    if lacking:
        longest_shard = max(range(len(counts)), key=counts.__getitem__)
        dataset = datasets.with_repeats(dataset, lacking, shard(longest_shard))
    return Rest(dataset, usual_steps - steps, batches_per_step)


def deal(counts: Sequence[int], segments: Sequence[tuple[int, int]]) -> list[Hand]:
    """The hands of the last segment's ranks, without what these have trained on.

    Args:
      counts: the batches of each shard; there is one for each rank of the first segment.
      segments: numbers of ranks, and the steps that each of these ranks has made.
    """
    hands: list[Hand] = [[(shard, range(count))] for shard, count in enumerate(counts)]
    _, made = segments[0]
    for ranks, steps in segments[1:]:
        left = [piece for hand in hands for piece in _part(hand, made)]
        size = _size(left)
        hands = [
            _part(left, size * rank // ranks, size * (rank + 1) // ranks) for rank in range(ranks)
        ]
        made = steps
    return [_part(hand, made) for hand in hands]


def _size(hand: Hand) -> int:
    return sum(len(batches) for _, batches in hand)


def _part(hand: Hand, start: int, stop: int = sys.maxsize) -> Hand:
    """`hand[start:stop]`, were it a list of single batches."""
    part = []
    for shard, batches in hand:
        if chosen := batches[start:stop]:
            part.append((shard, chosen))
        start, stop = max(0, start - len(batches)), max(0, stop - len(batches))
    return part


def _after_iterators(dataset: tf.data.Dataset, iterators: int) -> tf.data.Dataset:
    """`dataset`, shuffled as the job that it was dealt out to first has read it in its epoch."""
    # That job had begun to read it once more to count batches that are not known.
    counted = int(dataset.cardinality()) == datasets.UNKNOWN
    for _ in range(iterators + counted):
        iter(dataset)
    return dataset


def _read(hand: Hand, shard: Callable[[int], tf.data.Dataset]) -> tf.data.Dataset:
    # A dataset of its own for each piece: two iterators over one would shuffle differently.
    pieces = [shard(index).skip(chosen.start).take(len(chosen)) for index, chosen in hand]
    return functools.reduce(tf.data.Dataset.concatenate, pieces or [shard(0).take(0)])
