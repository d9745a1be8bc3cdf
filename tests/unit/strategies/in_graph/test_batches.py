"""A batch split into parts, and the batches of several replicas joined into one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.in_graph.batches import Parts, joined

pytestmark = pytest.mark.stacks("2.15", "newest")


def of_size(size: int, *, is_static: bool = True) -> tf.Tensor:
    """A batch; in a function, its size may be unknown."""
    values = tf.reshape(tf.range(2.0 * size), [size, 2])
    return values if is_static else tf.ensure_shape(tf.raw_ops.Identity(input=values), [None, 2])


def split(size: int, count: int, *, is_static: bool) -> tuple[list[np.ndarray], np.ndarray]:
    """The parts of a batch, and what they are when merged."""
    signature = [tf.TensorSpec([size if is_static else None, 2])]

    @tf.function(input_signature=signature)
    def run(batch: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        parts = Parts([batch], count)
        pieces = parts.split(batch)
        return pieces, parts.merge(pieces)

    pieces, merged = run(of_size(size))
    return [piece.numpy() for piece in pieces], merged.numpy()


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize(
    ("size", "count", "sizes"),
    [
        (8, 4, [2, 2, 2, 2]),
        (9, 4, [3, 2, 2, 2]),
        (11, 4, [3, 3, 3, 2]),
        (5, 1, [5]),
        (3, 4, [1, 1, 1, 1]),
        (1, 3, [1, 1, 1]),
    ],
)
def test_parts_differ_by_one_example_and_merge_to_the_batch(
    size: int, count: int, sizes: list[int], is_static: bool
) -> None:
    pieces, merged = split(size, count, is_static=is_static)
    assert [len(piece) for piece in pieces] == sizes
    batch = of_size(size).numpy()
    np.testing.assert_array_equal(merged, batch)
    repeated = np.repeat(batch[-1:], max(0, count - size), axis=0)
    np.testing.assert_array_equal(np.concatenate(pieces), np.concatenate([batch, repeated]))


def test_tensors_of_other_types_and_ranks_are_split_too() -> None:
    labels = tf.constant([b"a", b"b", b"c"])
    images = tf.zeros([3, 2, 2, 1], tf.uint8)
    parts = Parts([labels, images], 2)
    assert [list(part.numpy()) for part in parts.split(labels)] == [[b"a", b"b"], [b"c"]]
    assert [part.shape for part in parts.split(images)] == [[2, 2, 2, 1], [1, 2, 2, 1]]


@pytest.mark.parametrize("size", [1, 3, 5, 8])
def test_the_gradient_of_a_merged_tensor_is_that_of_merge(size: int) -> None:
    batch = of_size(size)
    gradient = tf.random.stateless_normal([size, 2], [1, 2])
    parts = Parts([batch], 4)
    pieces = parts.split(batch)
    with tf.GradientTape() as tape:
        tape.watch(pieces)
        merged = parts.merge(pieces)
    expected = tape.gradient(merged, pieces, gradient)
    for found, own in zip(parts.split_gradient(gradient), expected, strict=True):
        np.testing.assert_array_equal(found, own)


def test_repeated_examples_have_no_gradient() -> None:
    parts = Parts([of_size(2)], 4)
    gradients = parts.split_gradient(tf.ones([2, 2]))
    assert [float(tf.reduce_sum(gradient)) for gradient in gradients] == [2, 2, 0, 0]


def lengths(dataset: tf.data.Dataset) -> list[int]:
    return [len(tf.nest.flatten(element)[0]) for element in dataset]


def test_the_batches_of_one_replica_are_unchanged() -> None:
    dataset = tf.data.Dataset.range(5).batch(2)
    assert joined(dataset, 1) is dataset


@pytest.mark.parametrize(
    ("examples", "sizes"), [(12, [6, 6]), (11, [6, 5]), (8, [6, 2]), (7, [6, 1]), (1, [1])]
)
def test_joined_batches_are_those_of_all_replicas_in_order(examples: int, sizes: list[int]) -> None:
    dataset = joined(tf.data.Dataset.range(examples).batch(2), 3)
    assert lengths(dataset) == sizes
    values = np.concatenate([batch.numpy() for batch in dataset])
    np.testing.assert_array_equal(values, np.arange(examples))
    assert int(dataset.cardinality()) == len(sizes)


def test_nested_elements_are_joined_by_component() -> None:
    numbers = tf.data.Dataset.range(5)
    dataset = tf.data.Dataset.zip(
        ({"a": numbers, "b": (numbers, numbers.map(lambda x: -x))}, numbers)
    )
    inputs, labels = next(iter(joined(dataset.batch(2), 2)))
    np.testing.assert_array_equal(inputs["a"], [0, 1, 2, 3])
    np.testing.assert_array_equal(inputs["b"][1], [0, -1, -2, -3])
    np.testing.assert_array_equal(labels, [0, 1, 2, 3])


def test_a_tuple_of_one_component_stays_one() -> None:
    numbers = tf.data.Dataset.range(5)
    dataset = tf.data.Dataset.zip(((numbers, numbers),)).batch(2)
    joined_spec = joined(dataset, 2).element_spec
    assert tf.nest.map_structure(lambda spec: spec.dtype, joined_spec) == ((tf.int64, tf.int64),)


def test_the_shape_of_a_joined_batch_has_no_false_size() -> None:
    dataset = joined(tf.data.Dataset.range(8).batch(2, drop_remainder=True), 2)
    assert lengths(dataset) == [4, 4]
    assert dataset.element_spec.shape.is_compatible_with([4])
