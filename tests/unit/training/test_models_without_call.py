"""A model that has parts and a train step, but no `call`, trains if its parts are built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")


class Parts(tf.keras.Model):
    """Its train step calls its only part."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.part = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1)], name="part")

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.part(data[0]) ** 2)
        weights = self.part.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"own": loss}


def compiled(*layers: Any) -> Parts:
    model = Parts(*layers)
    model.compile(tf.keras.optimizers.SGD(0.1))
    return model


def test_it_trains_and_resumes_without_an_export(tiny: TinyTraining, tmp_path: Path) -> None:
    def fit(epochs: int) -> Any:
        return tiny.job().fit(
            lambda: compiled(tf.keras.Input([4])),
            tiny.train_input,
            epochs=epochs,
            output_dir=str(tmp_path),
            verbose=0,
        )

    trained = fit(1).model.get_weights()
    resumed = fit(1)
    np.testing.assert_array_equal(resumed.model.get_weights()[0], trained[0])
    assert len(fit(2).history["own"]) == 2
    assert not (tmp_path / "saved_model").exists()


def test_a_part_without_weights_is_named(tiny: TinyTraining, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which has no call, with part, which has no weights yet"):
        tiny.job().fit(
            lambda: compiled(), tiny.train_input, epochs=1, output_dir=str(tmp_path), verbose=0
        )


class Late(tf.keras.Model):
    """Its train step calls a layer that `call` does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.late = tf.keras.layers.Dense(1), tf.keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.first(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data[0]) + self.late(data[0]) - 1.0) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"own": loss}


def test_a_layer_of_the_train_step_alone_is_trained(tiny: TinyTraining, tmp_path: Path) -> None:
    def build() -> tf.keras.Model:
        model = Late()
        model.compile(tf.keras.optimizers.Adam(0.1))
        return model

    trained = tiny.job().fit(build, tiny.train_input, epochs=2, output_dir=str(tmp_path), verbose=0)
    # A layer that Keras builds has no bias yet.
    assert np.abs(trained.model.late.bias.numpy()).min() > 0
