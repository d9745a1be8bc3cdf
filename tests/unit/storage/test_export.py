"""The exported model is complete, and written atomically."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining, file_size_limit
from tests.support.trained_models import files, trained
from tfdist.errors import OutputError
from tfdist.storage import export
from tfdist.storage.output_directory import OutputDirectory

pytestmark = pytest.mark.stacks("2.15")


def test_the_exported_model_gives_the_same_predictions(tiny: TinyTraining, tmp_path: Path) -> None:
    model = trained(tiny)
    expected = model(tiny.points).numpy()
    assert np.ptp(expected) > 0.1

    export.export(model, OutputDirectory(tmp_path), writes=True)

    assert os.listdir(tmp_path) == ["saved_model"]
    loaded = tf.keras.models.load_model(tmp_path / "saved_model")
    np.testing.assert_allclose(loaded.predict(tiny.points, verbose=0), expected, rtol=1e-5)
    served_model = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(served_model(tf.constant(tiny.points)), expected, rtol=1e-5)
    (served,) = served_model.signatures["serving_default"](tf.constant(tiny.points)).values()
    np.testing.assert_allclose(served.numpy(), expected, rtol=1e-5)


def of_two_numbers() -> tf.keras.Model:
    inputs = {name: tf.keras.Input([2], name=name) for name in ("right", "left")}
    joined = tf.keras.layers.Concatenate()([inputs["left"], inputs["right"]])
    outputs = {name: tf.keras.layers.Dense(1, name=name)(joined) for name in ("sum", "product")}
    return tf.keras.Model(inputs, outputs)


def of_words() -> tf.keras.Model:
    inputs = tf.keras.Input([1], dtype=tf.string)
    words = tf.keras.layers.StringLookup()
    words.adapt(["mon", "tue"])
    return tf.keras.Model(inputs, tf.keras.layers.Embedding(3, 2)(words(inputs)))


class Doubled(tf.keras.layers.Layer):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return 2.0 * inputs


def with_a_layer_of_its_own() -> tf.keras.Model:
    return tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(2), Doubled()])


NUMBERS = np.arange(6, dtype="float32").reshape(3, 2)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (of_two_numbers, {"left": NUMBERS, "right": NUMBERS + 1}),
        (of_words, np.array([["tue"], ["sun"], ["mon"]])),
        (with_a_layer_of_its_own, NUMBERS),
    ],
)
def test_an_export_is_served_called_and_loaded_as_that_of_keras(
    tmp_path: Path, make: Callable[[], tf.keras.Model], inputs: Any
) -> None:
    model, tensors = make(), tf.nest.map_structure(tf.constant, inputs)
    expected = model.predict(inputs, verbose=0)
    export.export(model, OutputDirectory(tmp_path), writes=True)
    model.save(tmp_path / "by_keras", include_optimizer=False)

    def signature(path: Path) -> Any:
        return tf.saved_model.load(str(path)).signatures["serving_default"]

    own, by_keras = signature(tmp_path / "saved_model"), signature(tmp_path / "by_keras")
    assert own.structured_input_signature == by_keras.structured_input_signature
    assert own.structured_outputs == by_keras.structured_outputs
    called = tf.saved_model.load(str(tmp_path / "saved_model"))(tensors)
    loaded = tf.keras.models.load_model(tmp_path / "saved_model")
    for found in (called, loaded.predict(inputs, verbose=0)):
        tf.nest.map_structure(np.testing.assert_allclose, found, expected)


def test_exporting_a_model_before_its_first_step_keeps_its_metrics_correct(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    model = tiny.model()

    export.export(model, OutputDirectory(tmp_path), writes=True)

    results = model.evaluate(
        tiny.eval_input(tf.distribute.InputContext()), return_dict=True, verbose=0
    )
    correct = model(tiny.points).numpy().argmax(axis=1) == tiny.classes
    assert 0 < correct.mean() < 1
    assert results["accuracy"] == pytest.approx(correct.mean())


class WatchedLayer(tf.keras.layers.Layer):
    """Calls `hook` while its model is being saved."""

    hook: Callable[[], None] = staticmethod(lambda: None)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs

    def get_config(self) -> dict[str, Any]:
        self.hook()
        return super().get_config()


def test_a_function_of_a_layer_is_exported(tmp_path: Path) -> None:
    inputs = tf.keras.Input([4])
    layer = tf.keras.layers.Dense(3)
    layer.halved = tf.function(lambda x: x / 2, input_signature=[tf.TensorSpec([])])

    export.export(tf.keras.Model(inputs, layer(inputs)), OutputDirectory(tmp_path), writes=True)

    loaded = tf.saved_model.load(str(tmp_path / "saved_model"))
    assert float(getattr(loaded, "layer_with_weights-0").halved(3.0)) == 1.5


def test_a_model_with_ragged_inputs_can_be_served(tmp_path: Path) -> None:
    inputs = tf.keras.Input([None], ragged=True, dtype=tf.int64)
    model = tf.keras.Model(inputs, tf.keras.layers.Embedding(3, 2)(inputs.to_tensor()))
    rows = tf.ragged.constant([[1], [2, 0]], tf.int64)

    export.export(model, OutputDirectory(tmp_path), writes=True)

    served = tf.saved_model.load(str(tmp_path / "saved_model"))(rows)
    np.testing.assert_allclose(served, model(rows))


def test_the_old_model_stays_intact_until_it_is_replaced(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    output = OutputDirectory(tmp_path)
    export.export(trained(tiny), output, writes=True)
    before = files(output.saved_model)
    seen: list[bool] = []
    layer = WatchedLayer()
    layer.hook = lambda: seen.append(files(output.saved_model) == before)
    model = tiny.model(seed=2, layers=(layer,))

    export.export(model, output, writes=True)

    assert seen
    assert all(seen)
    assert os.listdir(tmp_path) == ["saved_model"]
    served = tf.saved_model.load(str(output.saved_model))(tf.constant(tiny.points))
    np.testing.assert_allclose(served.numpy(), model(tiny.points).numpy(), rtol=1e-5)


def test_a_failed_export_keeps_only_the_old_model(tiny: TinyTraining, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    export.export(trained(tiny), output, writes=True)
    before = files(tmp_path)

    def fail() -> None:
        raise OSError("the disk is full")

    layer = WatchedLayer()
    layer.hook = fail

    with pytest.raises(OSError, match="the disk is full"):
        export.export(tiny.model(layers=(layer,)), output, writes=True)

    assert files(tmp_path) == before
    assert os.listdir(tmp_path) == ["saved_model"]


class Student(tf.keras.Model):
    """Its train step calls a part of it; it was built without a call."""

    def __init__(self) -> None:
        super().__init__()
        self.part = tf.keras.layers.Dense(1)

    def build(self, shape: Any = None) -> None:
        self.part.build([None, 4])
        self.built = True

    def call(self, inputs: Any) -> Any:
        return self.part(inputs)


def test_a_model_that_was_never_called_is_no_error_after_a_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Student()
    model.build([None, 4])
    export.export(model, OutputDirectory(tmp_path), writes=True)
    assert "Student cannot be exported: " in caplog.text
    assert not os.listdir(tmp_path)


def test_a_task_that_does_not_write_exports_nothing(
    tiny: TinyTraining, tmp_path: Path, temporary_files: Callable[[], list[str]]
) -> None:
    export.export(trained(tiny), OutputDirectory(tmp_path / "output"), writes=False)

    assert not (tmp_path / "output").exists()
    assert temporary_files() == []


@pytest.mark.parametrize(
    ("aggregation", "has_metric", "is_needed"),
    [
        (tf.VariableAggregation.MEAN, False, False),
        (tf.VariableAggregation.SUM, False, True),
        (tf.VariableAggregation.MEAN, True, True),
    ],
)
def test_a_task_that_does_not_write_participates_if_needed(
    tiny: TinyTraining,
    tmp_path: Path,
    aggregation: tf.VariableAggregation,
    has_metric: bool,
    is_needed: bool,
) -> None:
    saved: list[bool] = []

    class Counts(WatchedLayer):
        def build(self, input_shape: Any) -> None:
            on_read = tf.VariableSynchronization.ON_READ
            self.add_weight(
                "count", [], trainable=False, synchronization=on_read, aggregation=aggregation
            )
            if has_metric:
                self.mean = tf.keras.metrics.Mean()
            self.hook = lambda: saved.append(True)

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = tiny.model(layers=(Counts(),))
    saved.clear()
    export.export(model, OutputDirectory(tmp_path), writes=False)

    assert bool(saved) == is_needed
    assert os.listdir(tmp_path) == []


def test_an_export_to_a_full_disk_keeps_only_the_old_model(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    output = OutputDirectory(tmp_path)
    export.export(tiny.model(), output, writes=True)
    before = files(tmp_path)

    with file_size_limit(1000), pytest.raises(OutputError, match="saved_model could not be writt"):
        export.export(tiny.model(seed=2), output, writes=True)

    assert files(tmp_path) == before
    assert os.listdir(tmp_path) == ["saved_model"]
