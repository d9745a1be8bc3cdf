"""TensorFlow Addons: its optimizer LAMB and its focal loss."""

from __future__ import annotations

import tfdist  # isort: skip

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa
from absl import flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)


def data(batch_size: int) -> tf.data.Dataset:
    x = np.random.default_rng(1).normal(size=[512, 8]).astype(np.float32)
    y = (x.sum(1, keepdims=True) > 0).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)


def build_model() -> tf.keras.Model:
    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential([tf.keras.Input([8]), dense(16, tfa.activations.gelu), dense(1)])
    loss = tfa.losses.SigmoidFocalCrossEntropy(from_logits=True)
    model.compile(tfa.optimizers.LAMB(0.01), loss)
    return model


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    batch_size = 32 // job.num_replicas
    job.fit(build_model, lambda: data(batch_size), epochs=3, output_dir=OUTPUT_DIR.value)


if __name__ == "__main__":
    tfdist.run(main)
