"""Minimal reproductions of the bugs of Keras 3 in saving that tfdist works around.

A test fails when upstream has fixed its bug: then remove the workaround that it names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.new_process import run

pytestmark = [pytest.mark.stacks("2.21"), pytest.mark.timeout(120)]


def test_checkpoints_miss_the_layers_in_a_list() -> None:
    """The workaround is in `tfdist.storage.checkpointer`."""
    lines = run(
        "import tempfile\n\nimport tensorflow as tf",
        """
        class Blocks(tf.keras.Model):
            def __init__(self):
                super().__init__()
                self.blocks = [tf.keras.layers.BatchNormalization()]

            def call(self, inputs):
                return self.blocks[0](inputs)

        model = Blocks()
        model(tf.ones([1, 1]))
        with tempfile.TemporaryDirectory() as directory:
            saved = tf.train.Checkpoint(model=model).save(f"{directory}/checkpoint")
            shapes = [shape for name, shape in tf.train.list_variables(saved) if shape]
        print(len(shapes), len(model.weights))
        """,
    )
    assert lines == ["0", "4"]


def test_every_task_writes_model_checkpoints() -> None:
    """The workaround is `keras3_callbacks`."""
    lines = run(
        "import tensorflow as tf",
        """
        import pathlib
        import tempfile

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        # Simulate a task that is not the chief; the callbacks of Keras 2 check this attribute.
        type(strategy.extended).should_checkpoint = False
        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory) / "model.weights.h5"
            callback = tf.keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
            callback.set_model(model)
            callback.on_epoch_end(0, {})
            print(path.exists())
        """,
    )
    assert lines == ["True"]


def test_the_signature_of_a_subclassed_model_has_no_public_api() -> None:
    """`keras3_export`"""
    import keras

    from tfdist.upstream.keras3_export import signature_of

    class Subclassed(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

    model = Subclassed()
    model(np.ones([2, 3]))
    (signature,) = signature_of(model)
    assert tuple(signature.shape) == (None, 3)
    assert signature_of(Subclassed()) is None
    assert not hasattr(keras.export, "get_input_signature")
