"""Arguments of `tf.data.Dataset`'s methods that the options of a dataset do not change."""

from __future__ import annotations

import threading

import pytest
import tensorflow as tf

import tfdist  # noqa: F401
from tfdist.upstream import dataset_arguments

pytestmark = pytest.mark.stacks("2.15", "2.21")


def first_element() -> int:
    """Reads numbers of which the first, 0, is only there when another one was read, or later."""
    other_was_read = threading.Event()

    def wait(number: tf.Tensor) -> tf.Tensor:
        if number == 0:
            other_was_read.wait(5)
        return number

    dataset = tf.data.Dataset.range(3).map(
        lambda number: tf.py_function(wait, [number], tf.int64),
        num_parallel_calls=2,
        deterministic=False,
    )
    options = tf.data.Options()
    options.deterministic = True
    first = int(next(iter(dataset.with_options(options))))
    other_was_read.set()
    return first


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
