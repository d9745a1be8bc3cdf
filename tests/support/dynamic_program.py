"""Trains a model with a `DynamicEmbedding`; the chief writes its rows by id to `--result`.

A second training task writes its own ones to the same name with `.other.npz`.
"""

from __future__ import annotations

import time

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import flags

from tfdist.layers import DynamicEmbedding

flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
flags.DEFINE_string("result", None, "The file of the result.", required=True)
flags.DEFINE_integer("epochs", 1, "Epochs.")
flags.DEFINE_integer("capacity", 24, "The rows of the table.")
flags.DEFINE_float("learning_rate", 0.3, "The rate of Adagrad.")
flags.DEFINE_integer("save_steps", None, "Updates between two checkpoints.")
flags.DEFINE_float("rest", 0.0, "Seconds of a worker before each batch.")
flags.DEFINE_string("warm_start", None, "The output directory of an earlier training.")
FLAGS = flags.FLAGS
# A second worker has no example in the last step of an epoch, which has three new ids.
EXAMPLES, GLOBAL_BATCH, IDS = 97, 16, 24


def build_model(job: tfdist.Job) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    inputs = tf.keras.Input([3], dtype="int64")
    hidden = layers.Flatten()(DynamicEmbedding(4, FLAGS.capacity, name="table")(inputs))
    model = tf.keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile(tf.keras.optimizers.Adagrad(FLAGS.learning_rate), "mse")
    if FLAGS.warm_start:
        job.warm_start(model, FLAGS.warm_start)
    return model


def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    random = np.random.default_rng(0)
    ids = random.integers(0, IDS - 3, [EXAMPLES, 3])
    ids[-1] = range(IDS - 3, IDS)
    labels = random.normal(size=[EXAMPLES, 1]).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((ids * 10**12, labels))
    data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
    data = data.batch(GLOBAL_BATCH // context.num_replicas_in_sync)
    return data.map(rest) if FLAGS.rest else data


def rest(ids: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    rested = tf.numpy_function(after_rest, [ids], ids.dtype)
    return tf.ensure_shape(rested, ids.shape), labels


def after_rest(ids: np.ndarray) -> np.ndarray:
    time.sleep(FLAGS.rest)
    return ids


@tfdist.main
def main(job: tfdist.Job) -> None:
    model = job.fit(
        build_model,
        batches,
        epochs=FLAGS.epochs,
        output_dir=FLAGS.output_dir,
        save_steps=FLAGS.save_steps,
    ).model
    table = model.get_layer("table")
    rows = np.concatenate(table.table.get_weights())  # Keras 2 lists its parts.
    (ids,) = [each for each in table.get_weights() if each.shape == (table.capacity,)]
    order = np.argsort(ids)
    result = FLAGS.result if job.is_chief else f"{FLAGS.result}.other.npz"
    np.savez(result, ids=ids[order], rows=rows[order], last=rows[-1])


if __name__ == "__main__":
    tfdist.run(main)
