"""A model of many features, for measure_features.py, whose tables are in the layer of `--layer`.

The ids are uniform. `--by_hand` trains with ParameterServerStrategy and a coordinator, as in
TensorFlow's documentation, which needs Keras 2.
"""

from __future__ import annotations

import tfdist  # isort: skip

import sys
import time
from typing import Any

import tensorflow as tf
from absl import app, flags

from tfdist.layers import DynamicEmbedding, FeatureConfig, FeatureEmbeddings, TableConfig

flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
flags.DEFINE_enum(
    "layer",
    "features",
    ["features", "each", "table", "dynamic"],
    "One FeatureEmbeddings, an Embedding for each feature, one Embedding, or a DynamicEmbedding.",
)
flags.DEFINE_bool("by_hand", False, "Whether the training does without tfdist.")
flags.DEFINE_integer("features", 26, "Features, each with a table.")
flags.DEFINE_integer("rows", 10_000, "Rows of a table.")
flags.DEFINE_integer("width", 16, "Columns of a table.")
flags.DEFINE_integer("batch_size", 512, "Examples of a worker's step.")
flags.DEFINE_integer("steps", 200, "Steps per epoch, of all workers.")
flags.DEFINE_integer("epochs", 4, "Epochs.")
FLAGS = flags.FLAGS


class Speed(tf.keras.callbacks.Callback):
    """Prints the steps per second of each epoch."""

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._begun = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        print(f"speed {FLAGS.steps / (time.monotonic() - self._begun):.2f}", flush=True)


def names() -> list[str]:
    return [f"feature_{number}" for number in range(FLAGS.features)]


def rows_of(inputs: dict[str, Any]) -> Any:
    """The rows of all features of an example, one after the other."""
    layers, count = tf.keras.layers, FLAGS.rows * FLAGS.features
    if FLAGS.layer == "features":
        tables = {
            name: FeatureConfig(TableConfig(name, FLAGS.rows, FLAGS.width)) for name in inputs
        }
        return layers.Concatenate()(list(FeatureEmbeddings(tables)(inputs).values()))
    if FLAGS.layer == "each":
        rows = [layers.Embedding(FLAGS.rows, FLAGS.width)(each) for each in inputs.values()]
        return layers.Concatenate()(rows)
    ids = [each + number * FLAGS.rows for number, each in enumerate(inputs.values())]
    together = layers.Concatenate()([layers.Reshape([1])(each) for each in ids])
    if FLAGS.layer == "table":
        return layers.Flatten()(layers.Embedding(count, FLAGS.width)(together))
    return layers.Flatten()(DynamicEmbedding(FLAGS.width, count)(together))


def build_model() -> tf.keras.Model:
    inputs = {name: tf.keras.Input([], dtype="int64", name=name) for name in names()}
    hidden = tf.keras.layers.Dense(64, "relu")(rows_of(inputs))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden))
    model.compile(tf.keras.optimizers.Adagrad(0.05), "mse")
    return model


def batches(_: object = None) -> tf.data.Dataset:
    """Random batches without an end, from a few that are kept."""
    shape = [16 * FLAGS.batch_size, FLAGS.features]
    ids = tf.random.stateless_uniform(shape, [1, 2], maxval=FLAGS.rows, dtype=tf.int64)
    labels = tf.random.stateless_uniform([shape[0], 1], [3, 4])
    features = dict(zip(names(), tf.unstack(ids, axis=1), strict=True))
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(FLAGS.batch_size)
    return dataset.cache().repeat().prefetch(2)


@tfdist.main
def with_tfdist(job: tfdist.Job) -> None:
    job.fit(
        build_model,
        lambda: batches(),
        epochs=FLAGS.epochs,
        steps_per_epoch=FLAGS.steps,
        output_dir=FLAGS.output_dir,
        callbacks=[Speed()] if job.is_chief else [],
        verbose=0,
    )


def by_hand(_: list[str]) -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
        ).join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        model = build_model()
    model.fit(
        tf.keras.utils.experimental.DatasetCreator(batches),
        steps_per_epoch=FLAGS.steps,
        epochs=FLAGS.epochs,
        callbacks=[Speed()],
        verbose=0,
    )


if __name__ == "__main__":
    if "--by_hand" in sys.argv:
        app.run(by_hand)
    else:
        tfdist.run(with_tfdist)
