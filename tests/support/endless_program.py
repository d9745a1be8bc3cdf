"""Trains on data without an end; with `--die`, the chief ends when that checkpoint is whole."""

from __future__ import annotations

import tfdist  # isort: skip

import os
import threading
import time
from pathlib import Path

import tensorflow as tf
from absl import flags

flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
flags.DEFINE_integer("die", None, "The updates in the checkpoint.")
FLAGS = flags.FLAGS


def build_model() -> tf.keras.Model:
    model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((tf.ones([8, 1]), tf.ones([8, 1]))).repeat()


def die() -> None:
    named = Path(FLAGS.output_dir, "checkpoints", "checkpoint")
    while not named.exists() or f"ckpt-{FLAGS.die}" not in named.read_text():
        time.sleep(0.001)
    os._exit(9)


@tfdist.main
def main(job: tfdist.Job) -> None:
    if FLAGS.die is not None and job.is_chief:
        threading.Thread(target=die, daemon=True).start()
    job.fit(
        build_model,
        batches,
        epochs=3,
        steps_per_epoch=100,
        save_steps=10,
        output_dir=FLAGS.output_dir,
    )


if __name__ == "__main__":
    tfdist.run(main)
