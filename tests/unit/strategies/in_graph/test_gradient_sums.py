"""Sums of gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.in_graph.gradient_sums import total

pytestmark = pytest.mark.stacks("2.15", "newest")


def rows(indices: list[int]) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.ones([len(indices), 2]), tf.constant(indices), tf.constant([3, 2]))


def test_a_variable_without_gradients_has_none() -> None:
    assert total([]) is None
    assert total([None, None]) is None


def test_a_single_gradient_is_returned_as_it_is() -> None:
    gradient = rows([1])
    assert total([None, gradient]) is gradient


def test_tensors_are_added() -> None:
    found = total([tf.ones([2]), None, tf.ones([2])])
    assert isinstance(found, tf.Tensor)
    np.testing.assert_array_equal(found, [2, 2])


def test_rows_stay_rows() -> None:
    found = total([rows([0, 2]), rows([2])])
    assert isinstance(found, tf.IndexedSlices)
    np.testing.assert_array_equal(tf.convert_to_tensor(found), [[1, 1], [0, 0], [2, 2]])


def test_rows_and_a_tensor_are_a_tensor() -> None:
    found = total([rows([0]), tf.ones([3, 2])])
    assert isinstance(found, tf.Tensor)
    np.testing.assert_array_equal(found, [[2, 2], [1, 1], [1, 1]])
