"""Training in mixed precision: the layers, the loss scale and the checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.entry
from tests.conftest import TinyTraining
from tfdist.config.flags import JobFlags
from tfdist.errors import UsageError

pytestmark = pytest.mark.stacks("2.15", "newest")


@pytest.fixture(autouse=True)
def restored_policy() -> Iterator[None]:
    yield
    tf.keras.mixed_precision.set_global_policy("float32")


def train(tiny: TinyTraining, output: Path, precision: str, *, epochs: int = 1) -> Any:
    """Trains a model with a nested one at its end; returns it."""
    job = tfdist.entry.create(JobFlags(precision=precision), {})

    def build() -> Any:
        tf.keras.utils.set_random_seed(1)
        head = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(3, name="out")])
        inputs = tf.keras.Input([4])
        hidden = tf.keras.layers.Dense(8, "relu", name="hidden")(inputs)
        model = tf.keras.Model(inputs, head(hidden))
        model.compile(
            tf.keras.optimizers.SGD(0.1, momentum=0.9),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return model

    history = job.fit(build, tiny.train_input, epochs=epochs, output_dir=str(output), verbose=0)
    return history.model


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_hidden_layers_compute_in_16_bits(
    tiny: TinyTraining, tmp_path: Path, precision: str
) -> None:
    model = train(tiny, tmp_path, precision)
    hidden, head = model.get_layer("hidden"), model.layers[-1]
    assert hidden.compute_dtype == precision.removeprefix("mixed_")
    assert head.get_layer("out").compute_dtype == "float32"
    assert model(tiny.points).dtype == tf.float32
    assert {np.dtype(weight.dtype) for weight in model.get_weights()} == {np.dtype("float32")}
    scales_loss = type(model.optimizer).__name__.startswith("LossScaleOptimizer")
    assert scales_loss == (precision == "mixed_float16")


class Subclassed(tf.keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.last = tf.keras.layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        return self.last(inputs)


@pytest.mark.parametrize("is_known", [False, True])
def test_output_layers_that_only_the_model_knows_are_named(
    tiny: TinyTraining, capsys: pytest.CaptureFixture[str], *, is_known: bool
) -> None:
    job = tfdist.entry.create(JobFlags(precision="mixed_bfloat16"), {})
    last = tf.keras.layers.Dense(3)
    # Without an input: it is built by its first batch.
    model = tf.keras.Sequential([last]) if is_known else Subclassed()
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    job.dataset(tiny.train_input)
    job._state.prepare(model)
    said = capsys.readouterr().err.count("only Subclassed itself knows its output layers")
    assert said == (not is_known)
    assert last.compute_dtype == ("float32" if is_known else "bfloat16")


def test_a_checkpoint_is_resumed_in_another_precision(tiny: TinyTraining, tmp_path: Path) -> None:
    first = train(tiny, tmp_path, "mixed_bfloat16").get_weights()
    tf.keras.mixed_precision.set_global_policy("float32")
    model = train(tiny, tmp_path, "float32", epochs=2)
    assert model.get_layer("hidden").compute_dtype == "float32"
    exact = train(tiny, tmp_path / "exact", "float32", epochs=2).get_weights()
    for before, after, expected in zip(first, model.get_weights(), exact, strict=True):
        assert np.abs(after - before).max() > 1e-3
        np.testing.assert_allclose(after, expected, atol=0.05)


def test_the_policy_of_the_script_is_kept(tiny: TinyTraining) -> None:
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    job = tfdist.entry.create(JobFlags(), {})
    model = tiny.model()
    job._state.prepare(model)
    assert model.layers[-1].compute_dtype == "bfloat16"


def test_float16_is_refused_where_keras_does_not_scale_losses() -> None:
    flags = JobFlags(strategy="central_storage", precision="mixed_float16")
    with pytest.raises(UsageError, match=r"--precision: .* under central_storage, where Keras"):
        tfdist.entry.create(flags, {})
