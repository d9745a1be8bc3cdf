"""Datasets of NumPy arrays in functions, which TensorFlow sends to all tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist  # noqa: F401
from tfdist.upstream import dataset_arrays

pytestmark = pytest.mark.stacks("2.15", "2.21")

ARRAYS: dict[str, Any] = {"x": np.arange(64 << 10, dtype=np.float32), "y": np.arange(64 << 10) % 7}


def traced(values: Any = ARRAYS) -> Any:
    @tf.function
    def make() -> tf.Tensor:
        return tf.data.experimental.to_variant(tf.data.Dataset.from_tensor_slices(values))

    return make.get_concrete_function()


def size(function: Any) -> int:
    return int(function.graph.as_graph_def().ByteSize())


def test_tensorflow_copies_the_arrays_of_a_dataset_into_its_function() -> None:
    assert size(traced()) > sum(array.nbytes for array in ARRAYS.values())


def test_the_arrays_become_inputs_of_the_function() -> None:
    own = tf.data.Dataset.from_tensor_slices
    with dataset_arrays.as_inputs():
        first, second = traced(), traced()
    assert tf.data.Dataset.from_tensor_slices is own
    assert size(first) < 10_000
    # Functions of the same arrays share their tensors.
    for one, other in zip(first.captured_inputs, second.captured_inputs, strict=True):
        assert one is other
    spec = tf.nest.map_structure(lambda array: tf.TensorSpec([], array.dtype), ARRAYS)
    dataset = tf.data.experimental.from_variant(first(), spec)
    for place, example in enumerate(dataset.take(9)):
        assert (example["x"], example["y"]) == (place, place % 7)


def test_small_arrays_stay_in_the_function() -> None:
    with dataset_arrays.as_inputs():
        assert not traced(np.arange(9)).captured_inputs
