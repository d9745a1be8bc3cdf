"""TensorFlow's coordination service: its heartbeat and its key-value store have no public API.

    set_heartbeat(cluster, seconds=30.0)     # before the strategy is built
    store = store_of(cluster)                # after it is built

TensorFlow sets its own heartbeat timeout (10 s) when MultiWorkerMirroredStrategy is built, without
an option for another: see `enable_collective_ops` in `tensorflow/python/eager/context.py`.
"""

from __future__ import annotations

import contextlib

import tensorflow as tf
from tensorflow.python.eager import context as tf_context

from tfdist.cluster import Cluster

# The module of its protocol buffers moves with each TensorFlow.
_CoordinatedJob = tf_context.coordination_config_pb2.CoordinatedJob


def set_heartbeat(cluster: Cluster, seconds: float) -> None:
    """Sets the seconds without a heartbeat after which a task counts as lost."""
    leader = cluster.chief_task
    tf_context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{leader.type}/replica:0/task:{leader.index}",
        heartbeat_timeout_in_ms=round(1000 * seconds),
        coordinated_jobs=[
            _CoordinatedJob(name=name, num_tasks=len(hosts))
            for name, hosts in cluster.jobs(in_tensorflow=True).items()
        ],
    )


class CoordinationServiceStore:
    """The coordination service's `tfdist.coordination.stores.kv_store.KeyValueStore`."""

    def put(self, key: str, value: str) -> None:
        # The service never overwrites a key.
        with contextlib.suppress(tf.errors.AlreadyExistsError):
            tf_context.context().set_config_key_value(key, value)

    def get(self, key: str, seconds: float) -> str | None:
        try:
            # For TensorFlow 0 milliseconds means forever.
            milliseconds = max(1, round(1000 * seconds))
            value: str = tf_context.context().get_config_key_value(key, milliseconds)
        except tf.errors.DeadlineExceededError:
            return None
        return value


def store_of(cluster: Cluster) -> CoordinationServiceStore | None:
    """The store of the training tasks; None if there is only one."""
    return CoordinationServiceStore() if len(cluster.training_tasks) > 1 else None
