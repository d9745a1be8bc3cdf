"""Trains a small Keras model or Estimator on user-defined TFRecord files.

Each record is a serialized float32 vector; `--records` matches the files.
"""

from __future__ import annotations

from typing import Any

import tfdist  # isort: skip

import tensorflow as tf
from absl import app, flags

import tfdist.estimator

tfdist.estimator.define_flags()
flags.DEFINE_string("records", None, "Pattern of the TFRecord files.", required=True)
flags.DEFINE_bool("estimator", False, "Train an Estimator.")
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
FLAGS = flags.FLAGS


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    features = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [4])
    return features, tf.reduce_sum(features, keepdims=True)


def train_input(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
    files = tf.data.Dataset.list_files(FLAGS.records, shuffle=False)
    files = files.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    dataset = files.interleave(tf.data.TFRecordDataset).map(parse).batch(4)
    return dataset.repeat() if FLAGS.estimator else dataset


def model_fn(
    features: tf.Tensor, labels: tf.Tensor, mode: str, config: tfdist.estimator.RunConfig
) -> tf.estimator.EstimatorSpec:
    weights = tf.compat.v1.get_variable("weights", [4, 1])
    loss = tf.reduce_mean(tf.square(labels - features @ weights))
    optimizer = config.job.wrap_optimizer(tf.compat.v1.train.GradientDescentOptimizer(0.01))
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def train_estimator() -> None:
    job = tfdist.estimator.init()
    config = tfdist.estimator.RunConfig(job, FLAGS.output_dir)
    estimator = tf.estimator.Estimator(model_fn, config=config)
    tfdist.estimator.train(estimator, train_input, max_steps=1000)


def train_keras() -> None:
    job = tfdist.init()
    if job.serves:
        return job.serve()
    with job.scope():
        model = tf.keras.Sequential([tf.keras.layers.Input([4]), tf.keras.layers.Dense(1)])
        model.compile(optimizer=job.wrap_optimizer(tf.keras.optimizers.SGD(0.01)), loss="mse")
    model.fit(
        job.dataset(train_input),
        epochs=2,
        callbacks=job.callbacks(FLAGS.output_dir),
        verbose=2 if job.is_chief else 0,
    )


@tfdist.exit_on_usage_error()
def main(_: list[str]) -> Any:
    return train_estimator() if FLAGS.estimator else train_keras()


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
