"""Trains a model with many parameters and little computation, so that the network dominates."""

from __future__ import annotations

import tfdist  # isort: skip  (before TensorFlow: it sets variables that TensorFlow reads when imported)

import json
from pathlib import Path

import numpy as np
import tensorflow as tf
from absl import app, flags
from sklearn.datasets import load_digits

tfdist.define_flags()
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_integer("epochs", 40, "Epochs.")
flags.DEFINE_integer("steps", None, "Steps per epoch; default: all of the data.")
FLAGS = flags.FLAGS

BATCH_SIZE = 16
WIDTH = 1024
TRAINING = 1437  # of 1797 images; the others measure the accuracy


@tfdist.exit_on_usage_error()
def main(_: list[str]) -> None:
    job = tfdist.init()
    tf.keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    order = np.random.default_rng(1).permutation(len(images))
    images, labels = images[order], labels[order]

    def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((images[:TRAINING], labels[:TRAINING]))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        data = data.shuffle(TRAINING, seed=1).batch(BATCH_SIZE)
        return data.repeat().take(FLAGS.steps) if FLAGS.steps else data

    def eval_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((images[TRAINING:], labels[TRAINING:]))
        return data.shard(context.num_input_pipelines, context.input_pipeline_id).batch(60)

    with job.scope():
        dense = tf.keras.layers.Dense
        model = tf.keras.Sequential(
            [
                tf.keras.Input([64]),
                dense(WIDTH, "relu"),
                dense(WIDTH, "relu"),
                dense(10),
            ]
        )
        model.compile(
            optimizer=job.wrap_optimizer(tf.keras.optimizers.SGD(0.05, momentum=0.9)),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    model.fit(
        job.dataset(train_input),
        epochs=FLAGS.epochs,
        callbacks=job.callbacks(FLAGS.output_dir),
        verbose=2 if job.is_chief else 0,
    )
    results = job.evaluate(model, eval_input)
    if job.is_chief:
        path = Path(FLAGS.output_dir) / "accuracy.json"
        path.write_text(json.dumps({"accuracy": float(results["accuracy"])}))


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
