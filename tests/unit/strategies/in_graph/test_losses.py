"""Losses that depend on a batch are found; losses of the weights are not."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tfdist.errors import UsageError
from tfdist.strategies.in_graph.losses import check_losses

pytestmark = pytest.mark.stacks("2.15", "newest")


class Penalty(tf.keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        self.add_loss(tf.reduce_mean(inputs**2))
        return inputs


def check(**dense: Any) -> None:
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input([4]), layers.Dense(4, **dense), layers.Dense(1)])
    check_losses(model, tf.TensorSpec([None, 4]))


def test_losses_of_the_weights_are_accepted() -> None:
    check(kernel_regularizer="l2", bias_regularizer="l1")


def test_an_activity_regularizer_is_refused() -> None:
    with pytest.raises(UsageError, match="activity regularizer"):
        check(activity_regularizer="l2")


def test_add_loss_is_refused() -> None:
    model = tf.keras.Sequential([tf.keras.Input([4]), Penalty(), tf.keras.layers.Dense(1)])
    with pytest.raises(UsageError, match="add_loss"):
        check_losses(model, tf.TensorSpec([None, 4]))
