"""Additions to a variable are recognized in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from tfdist.compat.additions import addend

pytestmark = pytest.mark.stacks("2.15", "newest")

SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "after": lambda state, x: state + x,
    "before": lambda state, x: x + state,
    "twice": lambda state, x: (state + 1.0) + (x - 1.0),
    "difference": lambda state, x: state - (-x),
    "reshaped": lambda state, x: tf.reshape(tf.reshape(state, [1]) + x, []),
    "of_many": lambda state, x: tf.add_n([x - 2.0, state.read_value(), tf.constant(2.0)]),
    "of_its_shape": lambda state, x: state + x * tf.ones_like(state),
    "either": lambda state, x: tf.where(x > 0, state + x, state.read_value()),
    "cast": lambda state, x: tf.cast(
        tf.cast(state, tf.float64) + tf.cast(x, tf.float64), "float32"
    ),
}
OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    "largest": lambda state, x: tf.maximum(state, x),
    "moving_mean": lambda state, x: state + 0.5 * (x - state),
    "multiple": lambda state, x: state + state + x,
    "negative": lambda state, x: x - state,
    "canceled": lambda state, x: (state + x) - state,
    "independent": lambda state, x: 2.0 * x,
    "by_its_value": lambda state, x: tf.where(state > 0, state + x, state + x),
    "of_several_kinds": lambda state, x: tf.where(x > 0, state + x, x),
    "product_added": lambda state, x: 0.5 * state + x,
}


def added(expression: Callable[[Any, Any], Any]) -> float | None:
    """What the expression adds to 5.0 for the argument 3.0."""
    state = tf.Variable(5.0)

    @tf.function(input_signature=[tf.TensorSpec([])], autograph=False)
    def step(x: tf.Tensor) -> Any:
        found = addend(expression(state, x), state)
        return tf.constant([]) if found is None else tf.reshape(found, [1])

    return next(iter(step(3.0).numpy().tolist()), None)


@pytest.mark.parametrize("name", SUMS)
def test_the_addend_of_a_sum_is_found(name: str) -> None:
    assert added(SUMS[name]) == 3.0


@pytest.mark.parametrize("name", OTHERS)
def test_other_values_have_no_addend(name: str) -> None:
    assert added(OTHERS[name]) is None
