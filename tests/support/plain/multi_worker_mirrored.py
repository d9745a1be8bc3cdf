"""A custom loop under MultiWorkerMirroredStrategy, which reads TF_CONFIG."""

from __future__ import annotations

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(0.0)


@tf.function
def train_step() -> tf.Tensor:
    def replica_step() -> tf.Tensor:
        gradient = 2.0 * (weight - 3.0)
        weight.assign_sub(0.1 * tf.distribute.get_replica_context().all_reduce("mean", gradient))
        return (weight - 3.0) ** 2

    return strategy.reduce("mean", strategy.run(replica_step), axis=None)


for _ in range(20):
    loss = train_step()
print(f"{strategy.num_replicas_in_sync} replicas have trained to a loss of {float(loss):.2f}")
