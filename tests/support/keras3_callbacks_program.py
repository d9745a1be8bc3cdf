"""Trains with Keras's own checkpoint callbacks in a shared directory, without tfdist's.

The chief fails after it has saved epoch `--fail_in_epoch`. At the end, each task writes its results
to the shared directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import app, flags

tfdist.define_flags()
flags.DEFINE_integer("fail_in_epoch", None, "The epoch, from 1, after which the chief fails.")
flags.DEFINE_string("shared_dir", None, "Directory that all tasks share.", required=True)
FLAGS = flags.FLAGS

EPOCHS = 4


class Epochs(tf.keras.callbacks.Callback):
    """Records the trained epochs, and the weights at the beginning of the first one."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self._fails = fails
        self.epochs: list[int] = []
        self.first_weights = np.zeros(0)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self.epochs:
            self.first_weights = np.concatenate([w.ravel() for w in self.model.get_weights()])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch + 1)
        if self._fails and FLAGS.fail_in_epoch == epoch + 1:
            raise RuntimeError("failing, as requested")


def main(_: list[str]) -> None:
    job = tfdist.init()
    shared = Path(FLAGS.shared_dir)
    with job.scope():
        tf.keras.utils.set_random_seed(job.task.index)
        model = tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(1)])
        optimizer = job.wrap_optimizer(tf.keras.optimizers.SGD(0.05, momentum=0.9))
        model.compile(optimizer=optimizer, loss="mse")

    def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        features = np.random.default_rng(3).normal(size=(24, 4)).astype("float32")
        dataset = tf.data.Dataset.from_tensor_slices((features, features.sum(1, keepdims=True)))
        return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(4)

    epochs = Epochs(fails=job.is_chief)
    model.fit(
        job.dataset(train_input),
        epochs=EPOCHS,
        callbacks=[
            *job._strategy.callbacks(),
            tf.keras.callbacks.BackupAndRestore(str(shared / "backup")),
            tf.keras.callbacks.ModelCheckpoint(str(shared / "model.keras")),
            tf.keras.callbacks.ModelCheckpoint(str(shared / f"model-{job.task.index}.keras")),
            tf.keras.callbacks.ModelCheckpoint(
                str(shared / "{epoch}.weights.h5"), save_weights_only=True
            ),
            epochs,
        ],
        verbose=0,
    )
    np.savez(
        shared / f"{job.task.type}-{job.task.index}.npz",
        epochs=epochs.epochs,
        first_weights=epochs.first_weights,
        weights=np.concatenate([weight.ravel() for weight in model.get_weights()]),
        steps=int(model.optimizer.iterations.numpy()),
    )


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
