"""tfdist checkpoints contain the variables that TensorFlow's checkpoints of Keras 3 models miss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.compat import building
from tfdist.storage.checkpointer import Checkpointer
from tfdist.training import evaluator as evaluation

pytestmark = pytest.mark.stacks("2.21")


class Blocks(tf.keras.Model):
    """A model with a list of layers, one of which draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [
            tf.keras.layers.Dense(5),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dropout(0.5),
            tf.keras.layers.Dense(3),
        ]

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = inputs
        for block in self.blocks[:2]:
            outputs = block(outputs, training=training)
        return self.blocks[3](self.blocks[2](outputs, training=training))


def compiled() -> Blocks:
    model = Blocks()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


def test_layers_in_lists_and_seeds_are_restored(tiny: TinyTraining, tmp_path: Path) -> None:
    job, trained = tiny.job(), compiled()
    dataset = job.dataset(tiny.train_input)
    trained.fit(dataset, epochs=2, callbacks=job.callbacks(str(tmp_path)), verbose=0)

    restored = compiled()
    building.build_model(restored, dataset.element_spec)
    building.build_optimizers(restored)
    assert Checkpointer(restored, tmp_path / "checkpoints").restore() == 2
    assert len(trained.variables) == len(restored.variables) == 9
    for found, expected in zip(restored.variables, trained.variables, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), err_msg=expected.path)


def test_the_evaluator_restores_layers_in_lists_and_seeds(
    tiny: TinyTraining, tmp_path: Path
) -> None:
    job, trained = tiny.job(), compiled()
    trained.fit(
        job.dataset(tiny.train_input), epochs=2, callbacks=job.callbacks(str(tmp_path)), verbose=0
    )
    evaluator = compiled()
    logs = evaluation.follow(tiny.job()._state, evaluator, tiny.eval_input, str(tmp_path), epochs=2)
    expected = job.evaluate(trained, tiny.eval_input)
    assert logs["loss"] == expected["loss"]
