"""Metrics may only add to a state that several replicas sum or share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tfdist.compat.metric_states import require_additions
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")


class Own(tf.keras.metrics.Metric):
    """A metric that combines its state with the largest target of a batch."""

    def __init__(self, combine: Any, aggregation: str = "sum") -> None:
        super().__init__(name="own")
        self.combine = combine
        if keras_is_3():
            self.labels = {1: "one", "b": "other"}  # Keras 2 refuses keys without an order.
            self.state = self.add_variable((), "zeros", aggregation=aggregation, name="state")
        else:
            self.state = self.add_weight(
                "state", aggregation=tf.VariableAggregation[aggregation.upper()]
            )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.state.assign(self.combine(tf.convert_to_tensor(self.state), tf.reduce_max(y_true)))

    def result(self) -> Any:
        return tf.convert_to_tensor(self.state)


def trained(metric: Own, *, shares_variables: bool, epochs: int = 2) -> float:
    """The metric after its last epoch: two batches, whose largest targets are 2 and 5."""
    model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
    # Some metrics of Keras itself assign sums, too.
    r2 = tf.keras.metrics.R2Score(name="r2")
    model.compile("sgd", "mse", metrics=[metric, "mae", r2])

    class Requires(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            require_additions(model, "a_strategy", shares_variables=shares_variables)

    targets = np.array([[1.0], [2.0], [5.0], [0.0]], "float32")
    history = model.fit(
        targets, targets, 2, epochs, shuffle=False, verbose=0, callbacks=[Requires()]
    ).history
    return float(history["own"][-1])


def add(state: Any, value: Any) -> Any:
    return state + value + 1.0


def largest(state: Any, value: Any) -> Any:
    return tf.maximum(state, value)


@pytest.mark.parametrize("shares_variables", [True, False])
def test_a_metric_may_add_to_its_state(shares_variables: bool) -> None:
    assert trained(Own(add), shares_variables=shares_variables) == 9.0


@pytest.mark.parametrize("shares_variables", [True, False])
def test_a_metric_that_does_not_add_is_refused(shares_variables: bool) -> None:
    with pytest.raises(UsageError, match="metric: received 'own, whose update_state assigns"):
        trained(Own(largest), shares_variables=shares_variables)


def test_the_aggregation_of_a_state_may_be_another_one_than_a_sum() -> None:
    assert trained(Own(largest, "mean"), shares_variables=False) == 5.0
    with pytest.raises(UsageError, match="whose replicas share it"):
        trained(Own(largest, "mean"), shares_variables=True)
