"""Trains four epochs; the second worker does something else, as `--fault` says."""

from __future__ import annotations

import sys

import tfdist  # isort: skip

import tensorflow as tf
from absl import flags

FAULT = flags.DEFINE_string("fault", "", "what the second worker does")
OUTPUT = flags.DEFINE_string("output_dir", None, "the output directory", required=True)


def points() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(([1.0, 2.0], [3.0])).repeat(32).batch(2)


class Exit(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        sys.exit(0)


@tfdist.main
def main(job: tfdist.Job) -> None:
    fault = "" if job.is_chief else FAULT.value

    def build_model(job: tfdist.Job) -> tf.keras.Model:
        units = 5 if fault == "model" else 4
        layers = [tf.keras.layers.Dense(units), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential([tf.keras.Input([2]), *layers])
        model.compile(tf.keras.optimizers.SGD(0.01), "mse")
        return model

    if fault == "no fit":
        return
    job.fit(
        build_model,
        points,
        epochs=4,
        output_dir=OUTPUT.value + ("-of-worker" if fault == "directory" else ""),
        callbacks=[Exit()] if fault == "exit" else [],
    )


if __name__ == "__main__":
    tfdist.run(main)
