"""Trains two epochs, and one more with a second `fit`; saving a checkpoint takes a second."""

from __future__ import annotations

import time
from unittest import mock

import tfdist  # isort: skip

import tensorflow as tf
from absl import app, flags

from tfdist.storage.checkpointer import Checkpointer, Position

FLAGS = flags.FLAGS
tfdist.define_flags()
flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)

_save = Checkpointer.save


def save(checkpointer: Checkpointer, position: Position, number: int) -> None:
    time.sleep(1.0)
    _save(checkpointer, position, number)
    print(f"saved at {time.monotonic()}", flush=True)


def pause(batch: int, logs: object = None) -> None:
    time.sleep(0.02)


def points(context: tf.distribute.InputContext) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensors(([1.0, 2.0], [3.0])).repeat(320)
    return dataset.shard(context.num_input_pipelines, context.input_pipeline_id).batch(2)


@tfdist.exit_on_usage_error()
def main(_: list[str]) -> None:
    job = tfdist.init()
    with job.scope():
        model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
        model.compile(job.wrap_optimizer(tf.keras.optimizers.SGD(0.01)), "mse")
    dataset = job.dataset(points)
    with mock.patch.object(Checkpointer, "save", save):
        for epochs in (2, 3):
            callbacks = job.callbacks(FLAGS.output_dir)
            callbacks.append(tf.keras.callbacks.LambdaCallback(on_train_batch_end=pause))
            model.fit(dataset, epochs=epochs, callbacks=callbacks, verbose=2 if job.is_chief else 0)


if __name__ == "__main__":
    app.run(main, flags_parser=tfdist.parse_flags)
