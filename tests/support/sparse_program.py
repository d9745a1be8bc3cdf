"""Trains a table with few and with many different rows in a batch; saves it as an array."""

from __future__ import annotations

from pathlib import Path

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
from absl import flags

OUTPUT = flags.DEFINE_string("output_dir", None, "Directory that all tasks share.", required=True)
#: A table that is too large to be sent with the dense gradients.
ROWS, COLUMNS = 600, 64
BATCH, IDS = 48, 40


def build_model() -> tf.keras.Model:
    tf.keras.utils.set_random_seed(1)
    inputs = tf.keras.Input([IDS], dtype="int64")
    rows = tf.keras.layers.Embedding(ROWS, COLUMNS)(inputs)
    outputs = tf.keras.layers.Dense(1)(tf.keras.layers.GlobalAveragePooling1D()(rows))
    model = tf.keras.Model(inputs, outputs)
    model.compile(tf.keras.optimizers.Adam(0.01), "mse")
    return model


def train_input(context: tf.distribute.InputContext) -> tf.data.Dataset:
    few = np.arange(BATCH * IDS) % 7
    many = np.arange(BATCH * IDS) % ROWS
    ids = np.concatenate([few, many, few, many]).reshape([-1, IDS])
    labels = np.random.default_rng(0).normal(size=[len(ids), 1])
    shards = context.num_input_pipelines
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels))
    return dataset.shard(shards, context.input_pipeline_id).batch(BATCH // shards)


@tfdist.main
def main(job: tfdist.Job) -> None:
    history = job.fit(build_model, train_input, epochs=2, output_dir=OUTPUT.value, verbose=0)
    if job.is_chief:
        np.savez(Path(OUTPUT.value) / "weights.npz", *history.model.get_weights())


if __name__ == "__main__":
    tfdist.run(main)
