"""Trains a perceptron of known size under any strategy, for measure_transfers.py."""

from __future__ import annotations

import tfdist  # isort: skip  (before TensorFlow: it sets variables that TensorFlow reads when imported)

import tensorflow as tf
from absl import flags

flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
flags.DEFINE_integer("width", 512, "Inputs and outputs of each layer.", lower_bound=1)
flags.DEFINE_integer("layers", 4, "Layers.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Examples of a replica in a step.", lower_bound=1)
flags.DEFINE_integer("steps", 20, "Steps of each replica.", lower_bound=1)
flags.DEFINE_enum("optimizer", "sgd", ["sgd", "adam"], "Optimizer.")
FLAGS = flags.FLAGS


def build_model(job: tfdist.Job) -> tf.keras.Model:
    dense = [tf.keras.layers.Dense(FLAGS.width, use_bias=False) for _ in range(FLAGS.layers)]
    model = tf.keras.Sequential([tf.keras.Input([FLAGS.width]), *dense])
    model.compile(FLAGS.optimizer, "mse")
    return model


def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    # One client reads for all replicas under in_graph; asynchronous replicas are not in sync.
    replicas = max(context.num_input_pipelines, context.num_replicas_in_sync)
    examples = tf.data.Dataset.range(FLAGS.steps * FLAGS.batch_size * replicas)
    shard = examples.shard(context.num_input_pipelines, context.input_pipeline_id)
    # The bytes of a step do not depend on the values.
    return shard.batch(FLAGS.batch_size).map(_constant)


def _constant(indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    points = tf.fill([tf.size(indices), FLAGS.width], 0.1)
    return points, points


@tfdist.main
def main(job: tfdist.Job) -> None:
    job.fit(build_model, train_input, epochs=1, output_dir=FLAGS.output_dir)


if __name__ == "__main__":
    tfdist.run(main)
