"""Sonnet: an MLP in a custom training loop, with an optimizer of Keras."""

from __future__ import annotations

import tfdist  # isort: skip

import numpy as np
import sonnet as snt
import tensorflow as tf
from absl import flags

OUTPUT_DIR = flags.DEFINE_string("output_dir", None, "Shared by all tasks.", required=True)


def data(batch_size: int) -> tf.data.Dataset:
    x = np.random.default_rng(1).normal(size=[512, 8]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(batch_size)


@tfdist.main
def main(job: tfdist.Job) -> None:
    tf.keras.utils.set_random_seed(1)
    with job.scope():
        net = snt.nets.MLP([16, 1])
        net(tf.zeros([1, 8]))
        optimizer = job.wrap_optimizer(tf.keras.optimizers.SGD(0.05))
        optimizer.build(net.trainable_variables)

    def update(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_mean((net(x) - y) ** 2, 1))
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))

    @tf.function
    def step(batch: tuple[tf.Tensor, tf.Tensor]) -> None:
        job.strategy.run(update, args=batch)

    batch_size = 32 // job.num_replicas
    for _ in range(3):
        for batch in job.dataset(lambda: data(batch_size)):
            step(batch)
    if job.is_chief:
        tf.train.Checkpoint(model=net).save(f"{OUTPUT_DIR.value}/checkpoints/ckpt")


if __name__ == "__main__":
    tfdist.run(main)
