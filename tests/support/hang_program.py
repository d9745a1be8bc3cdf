"""Trains a small Keras model, and hangs after some steps in one task; see `--hang`."""

from __future__ import annotations

import time
from typing import Any

import tfdist  # isort: skip

import tensorflow as tf
from absl import flags

HANG = flags.DEFINE_enum("hang", "no", ["no", "callback", "py_function", "read"], "Where.")
FILE = flags.DEFINE_string("file", None, "The file that cannot be read, with --hang=read.")
SHARD = flags.DEFINE_integer("shard", 1, "The shard whose task hangs.")
OUTPUT = flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)

HEALTHY_STEPS = 5
BATCH_SIZE = 4
calls = 0


class Hang(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == HEALTHY_STEPS:
            sleep_in_callback()


def sleep_in_callback() -> None:
    time.sleep(1000)


def sleep_in_function(x: tf.Tensor) -> tf.Tensor:
    global calls
    calls += 1
    if calls > HEALTHY_STEPS:
        time.sleep(1000)
    return x


def read(x: tf.Tensor) -> tf.Tensor:
    return x + tf.cast(tf.strings.length(tf.io.read_file(FILE.value)), tf.float32)


def build_model() -> tf.keras.Model:
    model = tf.keras.Sequential([tf.keras.layers.Input([1]), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    data = tf.data.Dataset.range(400).shard(context.num_input_pipelines, context.input_pipeline_id)
    data = data.map(lambda n: tf.cast([n], tf.float32) / 400.0)
    if HANG.value == "py_function" and context.input_pipeline_id == SHARD.value:
        data = data.map(
            lambda x: tf.ensure_shape(tf.py_function(sleep_in_function, [x], tf.float32), [1])
        )
    if HANG.value == "read" and context.input_pipeline_id == SHARD.value:
        # More than is read ahead.
        healthy = 100
        data = data.take(healthy).concatenate(data.skip(healthy).map(read))
    return data.map(lambda x: (x, x)).batch(BATCH_SIZE, drop_remainder=True)


@tfdist.main
def main(job: tfdist.Job) -> None:
    hangs = HANG.value == "callback" and job.topology.shard == SHARD.value
    job.fit(
        build_model,
        train_input,
        epochs=2,
        output_dir=OUTPUT.value,
        callbacks=[Hang()] if hangs else [],
    )


if __name__ == "__main__":
    tfdist.run(main)
