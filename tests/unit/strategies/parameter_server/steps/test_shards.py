"""A reader gives the same batch for the same epoch and step, also after it was replaced."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.steps.shards import ShardReader

pytestmark = pytest.mark.stacks("2.15", "newest")


def shuffled() -> tf.data.Dataset:
    return tf.data.Dataset.range(6).shuffle(6, seed=3, reshuffle_each_iteration=True)


def reader() -> ShardReader:
    dataset = shuffled()
    return ShardReader(lambda: tf.data.experimental.to_variant(shuffled()), dataset.element_spec, 0)


def read(reader: ShardReader, epoch: int, step: int, count: int) -> list[int]:
    iterator = reader.at(epoch, step)
    found = [int(next(iterator)) for _ in range(count)]
    reader.advance(count)
    return found


def test_the_next_steps_go_on_with_the_same_iterator() -> None:
    one = reader()
    first = read(one, epoch=1, step=0, count=2)
    rest = read(one, epoch=1, step=2, count=4)
    assert sorted(first + rest) == list(range(6))


def test_a_new_reader_repeats_the_order_of_each_epoch_from_any_step() -> None:
    one = reader()
    epochs = [read(one, epoch, step=0, count=6) for epoch in (1, 2, 3)]
    assert epochs[0] != epochs[1]
    for epoch in (1, 2, 3):
        other = reader()
        assert read(other, epoch, step=2, count=4) == epochs[epoch - 1][2:]


def test_a_step_before_the_place_of_the_reader_is_read_again() -> None:
    one = reader()
    epoch = read(one, epoch=2, step=0, count=6)
    assert read(one, epoch=2, step=1, count=3) == epoch[1:4]


def test_what_was_forgotten_is_created_again() -> None:
    one = reader()
    epoch = read(one, epoch=1, step=0, count=6)
    one.forget()
    assert read(one, epoch=1, step=4, count=2) == epoch[4:]
