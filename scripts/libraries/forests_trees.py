"""TensorFlow Decision Forests: gradient boosted trees."""

from __future__ import annotations

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
import tensorflow_decision_forests as tfdf
from absl import flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)


def data(batch_size: int) -> tf.data.Dataset:
    x = np.random.default_rng(1).normal(size=[512, 8]).astype(np.float32)
    y = (x.sum(1, keepdims=True) > 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


def build_model() -> tf.keras.Model:
    model = tfdf.keras.GradientBoostedTreesModel(num_trees=10)
    model.compile(metrics=["accuracy"])
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    batch_size = 32 // job.num_replicas
    job.fit(build_model, lambda: data(batch_size), epochs=1, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
