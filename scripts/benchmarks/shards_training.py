"""The training of measure_shards.py and measure_elastic.py.

It counts in the model the uses of each example.
"""

from __future__ import annotations

import tfdist  # isort: skip

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

OUTPUT = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
RESULT = flags.DEFINE_string("result", None, "File for the counts of each epoch.", required=True)
EPOCHS = flags.DEFINE_integer("epochs", 4, "Epochs.")
EXAMPLES = flags.DEFINE_integer("examples", 24_000, "Examples.")
WORK = flags.DEFINE_integer("work", 6, "Products of matrices that a batch costs.")
WAIT = flags.DEFINE_float("wait", 0.0, "Seconds that a batch waits, as for a slow disk.")
PRINT = flags.DEFINE_bool("print_steps", False, "Whether each worker prints when it reads a batch.")
BATCH = 50


def work(numbers: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
    """A batch that takes some milliseconds of a core of the worker."""
    targets = tf.cast(numbers, tf.float32)[:, tf.newaxis]
    if PRINT.value:
        now = tf.strings.as_string(tf.timestamp(), precision=3)
        tf.print("reads at", now, output_stream=sys.stderr)
    product = tf.eye(400) * (1 + 0 * targets[0])
    for _ in range(WORK.value):
        product @= product
    return (
        tf.repeat(targets / 1e5 + 0 * product[0, 0], 8, axis=1),
        numbers[:, tf.newaxis],
    ), targets


def waiting(element: tf.Tensor) -> tf.data.Dataset:
    """A dataset of one element, which takes some time, without a core."""
    data = tf.data.Dataset.from_tensors(element)
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(data),
        # It sleeps at its end, too.
        sleep_microseconds=tf.constant(round(1e6 * WAIT.value / 2), tf.int64),
        output_types=[data.element_spec.dtype],
        output_shapes=[data.element_spec.shape],
    )
    return tf.data.experimental.from_variant(variant, data.element_spec)


class Loss(tf.keras.losses.Loss):
    """An error, which hardly changes the weights, and minus the uses of the examples."""

    def call(self, numbers: Any, outputs: Any) -> Any:
        predicted, uses = tf.split(outputs, 2, axis=-1)
        error = tf.reduce_sum((predicted - tf.sin(numbers)) ** 2, -1)
        return 1e-6 * error - tf.reduce_sum(uses, -1)


@tfdist.main
def main(job: tfdist.Job) -> None:
    counts: list[np.ndarray] = []
    # Of each example, by a gradient of 1.
    uses = tf.keras.layers.Embedding(EXAMPLES.value, 1, embeddings_initializer="zeros")

    def build_model() -> tf.keras.Model:
        features = tf.keras.Input([8])
        number = tf.keras.Input([1], dtype=tf.int64)
        hidden = tf.keras.layers.Dense(32, "relu")(features)
        outputs = [tf.keras.layers.Dense(1)(hidden), tf.keras.layers.Flatten()(uses(number))]
        model = tf.keras.Model((features, number), tf.keras.layers.Concatenate()(outputs))
        model.compile(tf.keras.optimizers.SGD(1.0), Loss(reduction="sum"))
        return model

    def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.range(EXAMPLES.value)
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        data = data.shuffle(EXAMPLES.value, seed=3).batch(BATCH)
        if WAIT.value:
            data = data.flat_map(waiting)
        return data.map(work)

    def record(epoch: int, logs: Any = None) -> None:
        counts.append(tf.convert_to_tensor(uses.weights[0]).numpy()[:, 0])

    job.fit(
        build_model,
        train_input,
        epochs=EPOCHS.value,
        output_dir=OUTPUT.value,
        callbacks=[tf.keras.callbacks.LambdaCallback(on_epoch_end=record)],
        verbose=0,
    )
    if job.is_chief:
        np.savez(RESULT.value, counts=np.diff(counts, axis=0, prepend=0))


if __name__ == "__main__":
    tfdist.run(main)
