"""The logs of a step with Keras 2, which sums the results of a step over the workers."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from tfdist.upstream.keras2_step_logs import KeepsMetricResults

pytestmark = pytest.mark.stacks("2.15")


class SumsOverTwoWorkers:
    def reduce(self, reduce_op: Any, value: tf.Tensor, axis: int | None) -> tf.Tensor:
        return 2 * value


class Strategy(KeepsMetricResults, SumsOverTwoWorkers):
    pass


def test_results_of_metrics_are_unchanged_and_other_results_are_summed() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
    model.compile(loss="mse", metrics=["mae"])
    strategy = Strategy()
    strategy.model = model
    logs = model.train_step((tf.ones([4, 1]), tf.zeros([4, 1])))
    for result in logs.values():
        assert strategy.reduce("SUM", result, axis=None) is result
    assert strategy.reduce("SUM", tf.constant(3.0), axis=None) == 6.0


def test_keras_sums_the_results_of_metrics() -> None:
    """Fails when Keras has fixed the bug: then remove `KeepsMetricResults`."""
    metric = tf.keras.metrics.Mean()
    strategy = mock.create_autospec(tf.distribute.MultiWorkerMirroredStrategy, instance=True)
    strategy.extended._in_multi_worker_mode.return_value = True
    training = __import__(tf.keras.Model.__module__, fromlist=["reduce_per_replica"])
    training.reduce_per_replica({"mean": metric(3.0)}, strategy, "auto")
    strategy.reduce.assert_called_once()
