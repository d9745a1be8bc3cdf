"""MultiWorkerMirroredStrategy with TF_CONFIG, as in TensorFlow's documentation."""

from __future__ import annotations

import json
import os

import tensorflow as tf
from absl import app

from scripts.benchmarks.training import FLAGS, MarksCallback, compiled, examples


def main(_: list[str]) -> None:
    config = json.loads(os.environ["TF_CONFIG"])
    workers, index = len(config["cluster"]["worker"]), config["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_batch_size = FLAGS.batch_size * workers
    dataset = examples(FLAGS.steps * global_batch_size).cache().shuffle(1000)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.batch(global_batch_size).prefetch(tf.data.AUTOTUNE).with_options(options)
    with strategy.scope():
        model = compiled(tf.keras.optimizers.SGD(0.1, momentum=0.9))
    model.fit(
        dataset,
        epochs=FLAGS.epochs,
        callbacks=[MarksCallback(writes=index == 0)],
        verbose=2 if index == 0 else 0,
    )


if __name__ == "__main__":
    app.run(main)
