"""The training of measure_shards.py, which counts in the model the uses of each example."""

from __future__ import annotations

import tfdist  # isort: skip

from typing import Any

import numpy as np
import tensorflow as tf
from absl import flags

OUTPUT = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)
RESULT = flags.DEFINE_string("result", None, "File for the counts of each epoch.", required=True)
EPOCHS = flags.DEFINE_integer("epochs", 4, "Epochs.")
EXAMPLES = flags.DEFINE_integer("examples", 24_000, "Examples.")
WORK = flags.DEFINE_integer("work", 6, "Products of matrices that a batch costs.")
BATCH = 50


class Seen(tf.keras.metrics.Metric):
    """Counts how often each example was used in an epoch."""

    def __init__(self) -> None:
        super().__init__(name="seen")
        shape = (EXAMPLES.value,)
        self.counts = self.add_weight(name="counts", shape=shape, initializer="zeros")

    def update_state(self, numbers: Any, _: Any, sample_weight: Any = None) -> None:
        one_hot = tf.one_hot(tf.cast(numbers[:, 0], tf.int32), EXAMPLES.value)
        self.counts.assign_add(tf.reduce_sum(one_hot, axis=0))

    def result(self) -> Any:
        return tf.reduce_sum(self.counts)

    def reset_state(self) -> None:
        self.counts.assign(tf.zeros([EXAMPLES.value]))


def work(inputs: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Takes some milliseconds of a core of the worker."""
    product = tf.eye(400) * (1 + 0 * inputs[0, 0])
    for _ in range(WORK.value):
        product @= product
    return inputs / 1e5 + 0 * product[0, 0], numbers


def loss(numbers: Any, predicted: Any) -> Any:
    return tf.reduce_mean((predicted - tf.sin(numbers)) ** 2, axis=-1)


@tfdist.main
def main(job: tfdist.Job) -> None:
    counts: list[np.ndarray] = []
    seen: list[Seen] = []

    def build_model() -> tf.keras.Model:
        seen.append(Seen())
        hidden = tf.keras.layers.Dense(32, "relu")
        model = tf.keras.Sequential([tf.keras.layers.Input([8]), hidden, tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(1e-3), loss, metrics=seen[-1:])
        return model

    def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
        data = tf.data.Dataset.range(EXAMPLES.value)
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        data = data.shuffle(EXAMPLES.value, seed=3)
        data = data.map(lambda number: tf.cast(number, tf.float32)[tf.newaxis])
        data = data.map(lambda number: (tf.repeat(number, 8), number)).batch(BATCH)
        return data.map(work)

    def record(epoch: int, logs: Any = None) -> None:
        counts.append(tf.convert_to_tensor(seen[-1].counts).numpy())

    job.fit(
        build_model,
        train_input,
        epochs=EPOCHS.value,
        output_dir=OUTPUT.value,
        callbacks=[tf.keras.callbacks.LambdaCallback(on_epoch_end=record)],
        verbose=0,
    )
    if job.is_chief:
        np.savez(RESULT.value, counts=np.array(counts))


if __name__ == "__main__":
    tfdist.run(main)
