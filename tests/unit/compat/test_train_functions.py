"""What is done before a training's first step: metrics are built, so that it is traced once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining


def model_of(outputs: int, loss: Any, **options: Any) -> tf.keras.Model:
    """With weights that are the same each time."""
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(outputs)])
    model.set_weights([np.ones([4, outputs]) * np.arange(outputs), np.zeros([outputs])])
    model.compile("sgd", loss, **options)
    return model


@pytest.mark.parametrize(("outputs", "is_one_hot"), [(3, False), (3, True), (1, False)])
def test_the_first_step_is_traced_once_and_counts_what_keras_counts(
    tiny: TinyTraining, tmp_path: Path, outputs: int, is_one_hot: bool
) -> None:
    targets = tf.one_hot(tiny.classes, 3) if is_one_hot else tf.minimum(tiny.classes, outputs)
    dataset = tf.data.Dataset.from_tensor_slices((tiny.points, targets)).batch(5)
    traced = []

    def loss(true: tf.Tensor, predicted: tf.Tensor) -> tf.Tensor:
        traced.append(predicted.shape)
        return tf.reduce_mean((tf.cast(true[0], tf.float32) - predicted) ** 2)

    metrics = {"metrics": ["accuracy"], "weighted_metrics": ["mae"]}
    job = tiny.job()
    # Of other data, as `fit` may be given others than those that were made last.
    job.dataset(lambda context: dataset.map(lambda x, y: (x, tf.zeros([5, 7]))))
    by_tfdist = model_of(outputs, loss, **metrics).fit(
        dataset, epochs=2, callbacks=job.callbacks(str(tmp_path)), verbose=0
    )
    assert len(traced) == 1

    by_keras = model_of(outputs, loss, **metrics).fit(dataset, epochs=2, verbose=0)
    assert len(traced) == 1 + 2, "Keras traces a first step that makes variables once"
    assert 0 < by_keras.history["accuracy"][0] < 1
    assert by_tfdist.history == by_keras.history


def test_what_keras_may_not_build_in_the_step_is_left_to_it(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    class Own(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.outputs = tf.keras.layers.Dense(3)

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return self.outputs(inputs)

        def train_step(self, data: Any) -> dict[str, Any]:
            return {metric.name: metric.result() for metric in self.metrics}

    job = tiny.job()
    model = Own()
    model.compile("sgd", "mse", metrics=["accuracy"])
    dataset = job.dataset(tiny.train_input)
    fitted = model.fit(dataset, callbacks=job.callbacks(str(tmp_path / "own")), verbose=0)
    assert fitted.history == {}

    model = model_of(3, "mse", metrics=["accuracy"])
    model.train_step = lambda data: {metric.name: metric.result() for metric in model.metrics}
    fitted = model.fit(dataset, callbacks=job.callbacks(str(tmp_path / "set")), verbose=0)
    assert fitted.history == {}
