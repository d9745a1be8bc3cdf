"""Keras divides the loss of a replica by what that replica has; a weighed step knows by what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tfdist.compat import denominators
from tfdist.compat.denominators import Settings, Step
from tfdist.compat.gradients import scaled
from tfdist.upstream import keras_denominators

pytestmark = pytest.mark.stacks("2.15", "newest")

LOSSES = tf.keras.losses
SETTINGS = Settings(4, 2, list, None, is_loop=False, says=False)


def masked(values: Any, mask: Any) -> tf.Tensor:
    """Predictions with a mask."""
    tensor = tf.constant(values, tf.float32)
    tensor._keras_mask = tf.constant(mask)
    return tensor


def test_the_losses_of_replicas_are_divided_by_what_each_has() -> None:
    """The workaround is `keras_denominators`."""
    loss = LOSSES.MeanAbsoluteError()
    first, second = [[[8.0], [9.0]]], [[[2.0], [4.0]]]
    parts = [masked(first, [[True, False]]), masked(second, [[True, True]])]
    whole = masked(first + second, [[True, False], [True, True]])
    mean = np.mean([float(loss(tf.zeros_like(part), part)) for part in parts])
    assert mean == 5.5
    assert float(loss(tf.zeros_like(whole), whole)) == pytest.approx(14 / 3)


def shares(compute: Any) -> tuple[float, float]:
    """The share of a step that computes a loss on three examples, and the loss."""
    keras_denominators.apply(tf.keras.Model)
    model = tf.keras.Model()
    vars(model)[denominators.SETTINGS] = SETTINGS

    @tf.function
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        with denominators.step_of(model, tf.zeros([3, 2])) as found:
            assert isinstance(found, Step)
            loss = compute()
            return found.share, loss

    share, loss = step()
    return float(share), float(loss)


def test_a_mean_counts_its_elements() -> None:
    loss = LOSSES.MeanAbsoluteError()
    share, value = shares(lambda: loss(tf.zeros([3, 2, 1]), tf.ones([3, 2, 1])))
    assert (share, value) == (0.75, 1.0)


def test_a_masked_mean_counts_what_the_mask_leaves() -> None:
    loss = LOSSES.MeanAbsoluteError()
    mask = [[True, False], [True, True], [False, False]]
    share, value = shares(lambda: loss(tf.zeros([3, 2, 1]), masked(np.ones([3, 2, 1]), mask)))
    assert (share, value) == (3 / 8, 1.0)


def test_a_sum_counts_once_and_is_multiplied_where_gradients_are_averaged() -> None:
    loss = LOSSES.MeanAbsoluteError(reduction="sum")
    share, value = shares(lambda: loss(tf.zeros([3, 1]), tf.ones([3, 1])))
    assert (share, value) == (1.0, 6.0)


@pytest.mark.skipif(not keras_is_3(), reason="Keras 2 has no such reduction")
def test_a_mean_by_sample_weights_counts_these() -> None:
    loss = LOSSES.MeanAbsoluteError(reduction="mean_with_sample_weight")
    weights = tf.constant([0.5, 0.0, 1.0])
    share, value = shares(lambda: loss(tf.zeros([3, 1]), tf.ones([3, 1]), weights))
    assert (share, value) == (1.5 / 4, 1.0)


@pytest.mark.parametrize(("reduction", "is_said"), [("sum", True), ("sum_over_batch_size", False)])
def test_a_loss_that_is_logged_by_replica_is_said(
    reduction: str, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Step, "say_once", lambda self, text: said.append(text))
    model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
    model.compile("sgd", LOSSES.MeanSquaredError(reduction=reduction))
    settings = denominators.Settings(
        batch_size=4, replicas=1, states=list, sums=None, is_loop=False, says=True
    )
    keras_denominators.weigh(model, settings)
    model.evaluate(tf.ones([4, 1]), tf.ones([4, 1]), batch_size=2, verbose=0)
    assert any("the logged losses of sums" in text for text in said) == is_said


@pytest.mark.parametrize("weight", [None, 0])
def test_the_loss_of_no_example_is_not_logged(weight: int | None) -> None:
    model = tf.keras.Model()
    vars(model)[denominators.SETTINGS] = SETTINGS
    mean = tf.keras.metrics.Mean()
    with denominators.step_of(model, tf.zeros([0, 2]), evaluates=True) as step:
        assert step is not None
        step.waiting.append((mean.update_state, tf.constant(float("nan")), weight))
    assert float(mean.result()) == 0.0
    assert float(mean.count) == 0.0


def test_losses_of_several_outputs_count_examples() -> None:
    loss = LOSSES.MeanAbsoluteError()
    share, _ = shares(
        lambda: loss(tf.zeros([3, 1]), tf.ones([3, 1])) + loss(tf.zeros([3, 5]), tf.ones([3, 5]))
    )
    assert share == 0.75


def test_a_loss_of_an_inner_function_counts_examples() -> None:
    loss = tf.function(LOSSES.MeanAbsoluteError())
    share, _ = shares(
        lambda: loss(tf.zeros([3, 2, 1]), masked(np.ones([3, 2, 1]), [[True, False]] * 3))
    )
    assert share == 0.75


def test_nothing_is_computed_for_full_batches() -> None:
    gradient = tf.constant([1.0, float("nan")])
    (kept,) = scaled([gradient], tf.constant(1.0))
    assert kept is gradient
    (dropped,) = scaled([gradient], tf.constant(0.0))
    assert dropped.numpy().tolist() == [0.0, 0.0]
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([3]), tf.constant([4, 2]))
    (half,) = scaled([rows], tf.constant(0.5))
    assert half.values.numpy().tolist() == [[0.5, 0.5]]


@pytest.mark.skipif(keras_is_3(), reason="Keras 3 converts no call")
def test_a_weighed_model_may_have_a_condition_on_a_tensor() -> None:
    class Conditional(tf.keras.Sequential):
        def call(self, inputs: tf.Tensor, **options: Any) -> tf.Tensor:
            if tf.reduce_sum(inputs) > 0.0:
                inputs = -inputs
            return super().call(inputs, **options)

    model = Conditional([tf.keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse")
    keras_denominators.weigh(model, SETTINGS)
    data = tf.ones([4, 1]), -tf.ones([4, 1])
    assert model.fit(*data, verbose=0).history["loss"] == [0.0]
    assert model.evaluate(*data, verbose=0) == 0.0
