"""Train steps whose optimizers are not the one of `compile`, as in a GAN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import TinyTraining
from tfdist.storage.checkpointer import Checkpointer, wait_for_writer
from tfdist.storage.output_directory import OutputDirectory

pytestmark = pytest.mark.stacks("2.15", "tf_keras", "newest")


class Stop(tf.keras.callbacks.Callback):
    """Stops the process's training in a step of the second epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._epoch == 1 and batch == 3:
            raise KeyboardInterrupt


class TwoOptimizers(tf.keras.Model):
    """A model whose train step uses an optimizer in an attribute and one in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first = tf.keras.layers.Dense(4, kernel_initializer="ones")
        self.second = tf.keras.layers.Dense(3, kernel_initializer="ones")

    def compile(self, first: Any, others: list[Any], **options: Any) -> None:
        super().compile(**options)
        self.first_optimizer = first
        self.others = others

    def call(self, inputs: Any) -> Any:
        return self.second(self.first(inputs))

    def train_step(self, data: Any) -> dict[str, Any]:
        inputs, classes = data
        with tf.GradientTape(persistent=True) as tape:
            losses = tf.keras.losses.sparse_categorical_crossentropy(
                classes, self(inputs), from_logits=True
            )
            loss = tf.reduce_mean(losses)
        for layer, optimizer in (
            (self.first, self.first_optimizer),
            (self.second, self.others[0]),
        ):
            weights = layer.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"mean_loss": loss}


def compiled() -> TwoOptimizers:
    model = TwoOptimizers()
    model.compile(tf.keras.optimizers.Adam(0.1), [tf.keras.optimizers.SGD(0.1, momentum=0.9)])
    return model


def train(tiny: TinyTraining, output: Path, *extra: tf.keras.callbacks.Callback) -> Any:
    job, model = tiny.job(), compiled()
    callbacks = [*job.callbacks(str(output), save_steps=2), *extra]
    model.fit(job.dataset(tiny.train_input), epochs=3, callbacks=callbacks, verbose=0)
    return model


def test_steps_are_counted_and_optimizers_resumed(tiny: TinyTraining, tmp_path: Path) -> None:
    expected = train(tiny, tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        train(tiny, tmp_path / "cut", Stop())
    wait_for_writer()
    saved = {path.stem for path in OutputDirectory(tmp_path / "cut").checkpoints.glob("*.index")}
    assert saved == {f"ckpt-{steps}" for steps in (2, 4, 5, 7, 9)}

    resumed = train(tiny, tmp_path / "cut")

    found, wanted = resumed.get_weights(), expected.get_weights()
    for own, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(own, other)
    assert int(resumed.first_optimizer.iterations) == int(resumed.others[0].iterations) == 15
    records = map(json.loads, (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines())
    assert [record["step"] for record in records] == [5, 10, 15]


def test_a_complete_training_has_its_steps(
    tiny: TinyTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny, tmp_path)
    capsys.readouterr()
    train(tiny, tmp_path)
    assert "training is complete after 3 epochs and 15 steps" in capsys.readouterr().err
    assert Checkpointer(compiled(), OutputDirectory(tmp_path).checkpoints).restore() == 3
