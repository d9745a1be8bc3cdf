"""Keras without distribution, as in TensorFlow's documentation."""

from __future__ import annotations

import tensorflow as tf
from absl import app

from scripts.benchmarks.training import FLAGS, MarksCallback, compiled, examples


def main(_: list[str]) -> None:
    dataset = examples(FLAGS.steps * FLAGS.batch_size).cache().shuffle(1000).batch(FLAGS.batch_size)
    compiled(tf.keras.optimizers.SGD(0.1, momentum=0.9)).fit(
        dataset.prefetch(tf.data.AUTOTUNE),
        epochs=FLAGS.epochs,
        callbacks=[MarksCallback()],
        verbose=2,
    )


if __name__ == "__main__":
    app.run(main)
