"""The statistics of a synchronized layer are those of the batches of all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.upstream import synchronized_layers

pytestmark = pytest.mark.stacks("2.15", "2.21", "tf_keras")

OWN = np.array([[1.0], [2.0], [6.0]], "float32")
OTHER = np.array([[-5.0]], "float32")


def model() -> Any:
    layer = tf.keras.layers.BatchNormalization(synchronized=True, momentum=0.0)
    return tf.keras.Sequential([tf.keras.layers.Input([1]), layer])


def test_keras_reduces_the_statistics_of_a_layer_with_the_context_of_a_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reduced: list[Any] = []

    def all_reduce(_: Any, operation: Any, value: Any) -> Any:
        reduced.append(operation)
        return value

    monkeypatch.setattr(tf.distribute.ReplicaContext, "all_reduce", all_reduce)
    model()(OWN, training=True)
    assert reduced == [tf.distribute.ReduceOp.SUM] * 3


def test_the_statistics_are_those_of_the_examples_of_all_ranks() -> None:
    own = tf.distribute.ReplicaContext.all_reduce
    sums = iter([OTHER.sum(), (OTHER**2).sum(), OTHER.size])
    trained = model()
    for _ in range(2):
        synchronized_layers.reduce_over_ranks(
            trained, lambda values: [value + next(sums) for value in values]
        )
    outputs = trained(OWN, training=True)

    every = np.concatenate([OWN, OTHER])
    expected = (OWN - every.mean()) / np.sqrt(every.var() + 1e-3)
    np.testing.assert_allclose(outputs, expected, atol=1e-6)
    statistics = [np.ravel(weight)[0] for weight in trained.get_weights()[2:]]
    np.testing.assert_allclose(statistics, [every.mean(), every.var()], rtol=1e-6)
    assert tf.distribute.ReplicaContext.all_reduce is own
