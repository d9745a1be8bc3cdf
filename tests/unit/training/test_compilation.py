"""`--jit_compile`: XLA compiles the steps of a Keras model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.entry
from tests.conftest import TinyTraining
from tfdist.config.flags import JobFlags

pytestmark = pytest.mark.stacks("2.15", "newest")


class InPython(tf.keras.layers.Layer):
    """Calls a function of Python, which XLA cannot compile."""

    def call(self, inputs: Any) -> Any:
        zero = tf.numpy_function(lambda: np.float32(0), [], tf.float32)
        return inputs + tf.ensure_shape(zero, [])


def train(tiny: TinyTraining, output: Path, *layers: tf.keras.layers.Layer, **flags: Any) -> Any:
    """Trains a model; returns its weights."""
    job = tfdist.entry.create(JobFlags.of(**flags), {})

    def build() -> Any:
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.Input([4]), *layers, tf.keras.layers.Dense(3)])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Keras 3 compiles some models by itself.
        model.compile(tf.keras.optimizers.SGD(0.1), loss, jit_compile=False)
        return model

    history = job.fit(build, tiny.train_input, epochs=2, output_dir=str(output), verbose=0)
    return history.model.get_weights()


def test_a_step_is_compiled_and_computes_the_same(tiny: TinyTraining, tmp_path: Path) -> None:
    plain = train(tiny, tmp_path / "plain", InPython())
    compiled = train(tiny, tmp_path / "compiled", jit_compile=True)
    for found, expected in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="PyFunc"):
        train(tiny, tmp_path / "refused", InPython(), jit_compile=True)
