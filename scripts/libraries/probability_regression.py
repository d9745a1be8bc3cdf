"""TensorFlow Probability: the model predicts a distribution, and the loss is its likelihood."""

from __future__ import annotations

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from absl import flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)


def data(batch_size: int) -> tf.data.Dataset:
    random = np.random.default_rng(1)
    x = random.uniform(-1, 1, [512, 1]).astype(np.float32)
    y = (2 * x + random.normal(0, 0.1 + np.abs(x))).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


def normal(parameters: tf.Tensor) -> tfp.distributions.Distribution:
    scale = 1e-3 + tf.math.softplus(parameters[..., 1:])
    return tfp.distributions.Normal(parameters[..., :1], scale)


def build_model() -> tf.keras.Model:
    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential(
        [tf.keras.Input([1]), dense(8, "relu"), dense(2), tfp.layers.DistributionLambda(normal)]
    )
    model.compile(tf.keras.optimizers.Adam(0.01), lambda y, predicted: -predicted.log_prob(y))
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    batch_size = 32 // job.num_replicas
    job.fit(build_model, lambda: data(batch_size), epochs=3, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
