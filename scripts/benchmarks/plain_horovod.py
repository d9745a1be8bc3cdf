"""Horovod with Keras under `horovodrun`, as in Horovod's documentation."""

from __future__ import annotations

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from absl import app

from scripts.benchmarks.training import FLAGS, MarksCallback, compiled, examples


def main(_: list[str]) -> None:
    hvd.init()
    dataset = examples(FLAGS.steps * FLAGS.batch_size * hvd.size()).shard(hvd.size(), hvd.rank())
    dataset = dataset.cache().shuffle(1000).batch(FLAGS.batch_size).prefetch(tf.data.AUTOTUNE)
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    compiled(hvd.DistributedOptimizer(optimizer)).fit(
        dataset,
        epochs=FLAGS.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            MarksCallback(writes=hvd.rank() == 0),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )


if __name__ == "__main__":
    app.run(main)
