"""What Keras 3 accepts under parameter servers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data import sharding
from tfdist.errors import UsageError
from tfdist.strategies.parameter_server.steps.shards import PerWorkerShards

pytestmark = pytest.mark.stacks("newest")


def keras3() -> Any:
    from tfdist.strategies.parameter_server.steps import keras3  # It imports Keras 3.

    return keras3


def compiled(optimizer: Any = "sgd", **options: Any) -> tf.keras.Model:
    model = tf.keras.Sequential([tf.keras.layers.Input([2]), tf.keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"], **options)
    model.optimizer.build(model.trainable_variables)
    return model


def shards() -> sharding.Shards:
    local = tf.data.Dataset.range(4)
    return sharding.Shards(local, (lambda: local,), trains=True)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"jit_compile": True}, "jit_compile"),
        ({"run_eagerly": True}, "run_eagerly"),
        (
            {"optimizer": tf.keras.optimizers.SGD(gradient_accumulation_steps=2)},
            "gradient_accumulation_steps",
        ),
    ],
)
def test_an_option_that_workers_would_ignore_is_refused(options: Any, field: str) -> None:
    with pytest.raises(UsageError, match=f"{field}: received .*; accepted: "):
        keras3().check(compiled(**options))


def test_additions_of_an_accepted_model_are_single_operations() -> None:
    model = compiled()
    keras3().check(model)

    @tf.function
    def count() -> None:
        model.optimizer.iterations.assign_add(1)

    operations = count.get_concrete_function().graph.get_operations()
    kinds = {operation.type for operation in operations}
    assert "AssignAddVariableOp" in kinds
    assert "AssignVariableOp" not in kinds


def test_only_datasets_of_the_job_are_accepted_for_training() -> None:
    with pytest.raises(UsageError, match="data of fit and evaluate: received 'ndarray'"):
        keras3().check_training_data(tf.data.Dataset.range(2), np.zeros([2]))
    distributed = PerWorkerShards(shards(), 1, lambda: (0, ()), iter)
    assert keras3().check_training_data(distributed, None) is distributed


def test_a_dataset_of_the_job_is_refused_for_predictions() -> None:
    keras3().check_prediction_data(np.zeros([2]))
    with pytest.raises(UsageError, match="data of predict"):
        keras3().check_prediction_data(sharding.for_keras(shards(), sharding.UNKNOWN))
