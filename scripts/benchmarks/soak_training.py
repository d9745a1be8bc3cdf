"""The training of soak.py: a small network on scikit-learn's digits, which hangs on request."""

from __future__ import annotations

import tfdist  # isort: skip  (before TensorFlow: it sets variables that TensorFlow reads when imported)

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags
from sklearn.datasets import load_digits

EPOCHS = flags.DEFINE_integer("epochs", 4, "Epochs.")
SAVE_STEPS = flags.DEFINE_integer("save_steps", 100, "Steps between checkpoints.")
OUTPUT = flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
RESULT = flags.DEFINE_string("result", None, "File for the final weights.", required=True)

GLOBAL_BATCH = 32
EXAMPLES = 11_520  # eight times 1,440 of the 1,797 images: 360 steps


class HangOnRequest(tf.keras.callbacks.Callback):
    """The task that removes the file `hang` in the output directory never makes its next step.

    After the last step, the others would complete the job without it.
    """

    def __init__(self, sees_steps: bool) -> None:
        super().__init__()
        if sees_steps:
            # Keras 2 refuses callbacks with this method under parameter servers.
            self.on_train_batch_begin = self.look

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.look()

    def look(self, *_: Any, **__: Any) -> None:
        with suppress(FileNotFoundError):
            Path(OUTPUT.value, "hang").unlink()
            time.sleep(10_000)


def build_model() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential([tf.keras.layers.Input([64]), dense(64, "relu"), dense(10)])
    model.compile(
        optimizer=tf.keras.optimizers.SGD(0.02, momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    images, labels = load_digits(return_X_y=True)
    images = np.tile(images[:1440].astype(np.float32) / 16, [8, 1])
    labels = np.tile(labels[:1440], 8)
    batch_size = GLOBAL_BATCH // job.num_replicas

    def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((images, labels))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.shuffle(EXAMPLES, seed=1).batch(batch_size, drop_remainder=True)

    history = job.fit(
        build_model,
        train_input,
        epochs=EPOCHS.value,
        output_dir=OUTPUT.value,
        save_steps=SAVE_STEPS.value,
        callbacks=[HangOnRequest(job.name != "parameter_server")],
        verbose=0,
    )
    if job.is_chief:
        weights = [weight.flatten() for weight in history.model.get_weights()]
        np.savez(RESULT.value, weights=np.concatenate(weights))


if __name__ == "__main__":
    tfdist.run(main)
