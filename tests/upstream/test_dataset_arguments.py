"""Arguments of `tf.data.Dataset`'s methods that the options of a dataset do not change."""

from __future__ import annotations

import pytest
import tensorflow as tf

import tfdist  # noqa: F401
from tfdist.upstream import dataset_arguments

pytestmark = pytest.mark.stacks("2.15", "2.21")


def first_element() -> int:
    """The first of three numbers, if the first that is read, 0, takes long."""

    def slow(number: tf.Tensor) -> tf.Tensor:
        turns = tf.where(number == 0, tf.constant(300_000, tf.int64), 0)
        return number + 0 * tf.while_loop(lambda i: i < turns, lambda i: (i + 1,), (turns * 0,))[0]

    dataset = tf.data.Dataset.range(3).map(slow, num_parallel_calls=2, deterministic=False)
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 4  # One thread would read in order.
    return int(next(iter(dataset.with_options(options))))


def test_a_method_wins_over_the_options() -> None:
    """If this fails, `tfdist.data.inputs` needs only the options."""
    assert first_element() != 0


def doubled_if_odd(number: tf.Tensor) -> tf.Tensor:
    if number % 2 > 0:  # AutoGraph must convert this.
        number = 2 * number
    return number


def test_autograph_converts_functions_of_a_dataset() -> None:
    def numbers() -> tf.data.Dataset:
        return tf.data.Dataset.range(4).map(doubled_if_odd)

    with dataset_arguments.replaced(deterministic=lambda _: None):
        assert list(numbers().as_numpy_iterator()) == [0, 2, 2, 6]
        assert tf.function(lambda: numbers().reduce(tf.constant(0, tf.int64), tf.add))() == 10


def test_arguments_are_replaced_by_name_and_by_position() -> None:
    own = tf.data.Dataset.map
    numbers = tf.data.Dataset.range(3)
    with dataset_arguments.replaced(deterministic=lambda _: None, filename=str.upper):
        assert first_element() == 0
        assert numbers.map(lambda x: x, 2, False)._deterministic == "default"
        assert numbers.cache("name")._filename.numpy() == b"NAME"
        assert next(numbers.batch(2).as_numpy_iterator()).tolist() == [0, 1]
    assert tf.data.Dataset.map is own
