"""ParameterServerStrategy with a chief: its workers and ps serve, and never end by themselves."""

from __future__ import annotations

import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight = tf.Variable(0.0)


@tf.function
def train_step() -> tf.Tensor:
    weight.assign_sub(0.1 * 2.0 * (weight - 3.0))
    return (weight - 3.0) ** 2


for _ in range(20):
    loss = coordinator.schedule(train_step)
coordinator.join()
print(f"the chief has trained to a loss of {loss.fetch():.2f}")
