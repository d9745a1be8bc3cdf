"""`--gradient_dtype`: replicas send 16-bit gradients; weights keep their full precision."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import tensorflow as tf

from tfdist.compat.denominators import reduce_weighted
from tfdist.strategies.collectives import sums_of_pairs
from tfdist.strategies.keras2_gradients import aggregation_of, reduce_gradients

pytestmark = pytest.mark.stacks("2.15")


def sending(optimizer: Any, dtype: str) -> Any:
    """An optimizer that sums the gradients of one replica in a dtype."""
    found = aggregation_of(optimizer)
    assert found is not None
    sums = partial(sums_of_pairs, getattr(*found), dtype)
    return reduce_gradients(optimizer, partial(reduce_weighted, sums=sums, replicas=1))


@pytest.mark.parametrize(
    ("dtype", "rounded"), [("bfloat16", 1.0), ("float16", 1.0009765625), (None, 1.001)]
)
def test_gradients_are_rounded_and_weights_are_not(dtype: str | None, rounded: float) -> None:
    optimizer = tf.keras.optimizers.SGD(1.0)
    if dtype:
        optimizer = sending(optimizer, dtype)
    variable = tf.Variable(0.3)

    optimizer.apply_gradients([(tf.constant(1.001), variable)])

    assert variable.numpy() == pytest.approx(0.3 - rounded, abs=1e-7)


def test_a_variable_without_a_gradient_is_not_changed() -> None:
    optimizer = sending(tf.keras.optimizers.SGD(1.0), "bfloat16")
    used, unused = tf.Variable(1.0), tf.Variable(1.0)

    pairs = optimizer.aggregate_gradients([(tf.constant(1.001), used), (None, unused)])

    assert [(None if g is None else float(g)) for g, _ in pairs] == [1.0, None]


def test_the_inner_optimizer_of_a_loss_scale_optimizer_is_wrapped() -> None:
    scaled = tf.keras.mixed_precision.LossScaleOptimizer(
        tf.keras.optimizers.SGD(1.0), dynamic=False, initial_scale=1.0
    )
    optimizer = sending(scaled, "bfloat16")
    variable = tf.Variable(0.3)

    optimizer.apply_gradients([(tf.constant(1.001), variable)])

    assert variable.numpy() == pytest.approx(-0.7, abs=1e-7)


def test_sparse_gradients_of_an_embedding_stay_sparse() -> None:
    optimizer = sending(tf.keras.optimizers.SGD(1.0), "bfloat16")
    table = tf.Variable(tf.zeros([3, 2]))
    rows = tf.IndexedSlices(tf.constant([[1.001, 2.0]]), tf.constant([1]), tf.constant([3, 2]))

    optimizer.apply_gradients([(rows, table)])

    assert table.numpy().tolist() == [[0, 0], [-1, -2], [0, 0]]


def test_a_legacy_optimizer_sends_them_too() -> None:
    optimizer = sending(tf.keras.optimizers.legacy.SGD(1.0), "bfloat16")
    variable = tf.Variable(0.3)

    optimizer.apply_gradients([(tf.constant(1.001), variable)])

    assert variable.numpy() == pytest.approx(-0.7, abs=1e-7)


def test_an_optimizer_of_tensorflow_1_has_no_aggregation() -> None:
    assert aggregation_of(tf.compat.v1.train.GradientDescentOptimizer(0.1)) is None
