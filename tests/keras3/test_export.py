"""The export of a Keras 3 model, for serving and for `keras.models.load_model`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.storage import export
from tfdist.storage.output_directory import OutputDirectory

pytestmark = pytest.mark.stacks("2.21")


FEATURES = np.linspace(0.0, 1.0, 12, dtype="float32").reshape(3, 4)


def sequential() -> tf.keras.Model:
    return tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(2)])


def functional() -> tf.keras.Model:
    inputs = {name: tf.keras.Input([4], name=name) for name in ("left", "right")}
    outputs = tf.keras.layers.Dense(2)(tf.keras.layers.Add()(list(inputs.values())))
    return tf.keras.Model(inputs, outputs)


def of_words() -> tf.keras.Model:
    inputs = tf.keras.Input([1], dtype="string")
    words = tf.keras.layers.StringLookup()
    words.adapt(["mon", "tue"])
    return tf.keras.Model(inputs, tf.keras.layers.Embedding(3, 2)(words(inputs)))


class SubclassedModel(tf.keras.Model):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = tf.keras.layers.Dense(2)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.dense(inputs)


@pytest.mark.parametrize("make", [sequential, functional, of_words, SubclassedModel])
def test_an_exported_model_can_be_served_and_loaded(tmp_path: Path, make: Any) -> None:
    model, output = make(), OutputDirectory(tmp_path)

    def custom_loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)

    optimizer = tf.keras.optimizers.Adam()
    model.compile(optimizer, custom_loss)
    inputs: Any = FEATURES
    if make is functional:
        inputs = {"left": FEATURES, "right": FEATURES}
    elif make is of_words:
        inputs = tf.constant([["tue"], ["sun"], ["mon"]])
    expected = model.predict(inputs, verbose=0)

    export.export(model, output, writes=True)

    archive = tf.saved_model.load(output.saved_model)
    served = archive.serve(tf.nest.map_structure(tf.constant, inputs))
    np.testing.assert_allclose(served, expected, rtol=1e-6)
    loaded = tf.keras.models.load_model(
        output.saved_model / export.KERAS_FILE, custom_objects={"SubclassedModel": SubclassedModel}
    )
    np.testing.assert_allclose(loaded.predict(inputs, verbose=0), expected, rtol=1e-6)
    # The export has no optimizer, and the model keeps its own.
    assert not loaded.compiled
    assert model.compiled
    assert model.optimizer is optimizer


def test_a_model_that_keras_cannot_write_can_still_be_served(tmp_path: Path) -> None:
    class Scale(tf.keras.layers.Layer):
        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return 2.0 * inputs

        def get_config(self) -> dict[str, Any]:
            return {"factor": functools.partial(float, 2.0)}

    model = tf.keras.Sequential([tf.keras.layers.Input([4]), Scale()])
    export.export(model, OutputDirectory(tmp_path), writes=True)

    saved = OutputDirectory(tmp_path).saved_model
    served = tf.saved_model.load(saved).serve(tf.constant(FEATURES))
    np.testing.assert_array_equal(served, 2.0 * FEATURES)
    assert not (saved / export.KERAS_FILE).exists()


def test_a_task_that_does_not_write_has_nothing_to_do(tmp_path: Path) -> None:
    calls = []

    class Counts(SubclassedModel):
        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            calls.append(inputs)
            return super().call(inputs)

    model = Counts()
    model(FEATURES)
    before = len(calls)
    export.export(model, OutputDirectory(tmp_path), writes=False)

    assert list(tmp_path.iterdir()) == []
    assert len(calls) == before > 0


class Student(SubclassedModel):
    """Its train step calls a part of it; it was built without a call."""

    def build(self, shape: Any = None) -> None:
        self.dense.build([None, 4])
        self.built = True


def test_of_a_model_that_was_never_called_there_is_what_keras_loads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, output = Student(), OutputDirectory(tmp_path)
    model.build()
    export.export(model, output, writes=True)
    assert "was never called, so there is only model.keras" in caplog.text
    assert [path.name for path in output.saved_model.iterdir()] == ["model.keras"]
