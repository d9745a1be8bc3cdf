"""Between-graph replication: task types for `tf.estimator`, session configuration, optimizers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist.entry
from tfdist.cluster import Cluster, Task
from tfdist.cluster.config import ClusterFlags
from tfdist.config.flags import JobFlags
from tfdist.errors import UsageError
from tfdist.estimator.between_graph import with_chief
from tfdist.estimator.estimator_job import EstimatorJob
from tfdist.estimator.optimizers import distributed, undistributed
from tfdist.estimator.sync_replicas import SyncReplicasHook, SyncReplicasOptimizer
from tfdist.strategies.base import Topology
from tfdist.tools.launch.local import hold_ports

pytestmark = pytest.mark.stacks("2.15")

ALONE = Topology("worker:0", ("worker:0",))
A, B, C = "10.0.0.1:2222", "10.0.0.2:2222", "10.0.0.3:2222"


@pytest.mark.parametrize(
    ("task", "renamed"),
    [
        (Task("worker", 0), Task("chief", 0)),
        (Task("worker", 1), Task("worker", 0)),
        (Task("ps", 0), Task("ps", 0)),
    ],
)
def test_worker_0_is_the_chief_in_a_cluster_without_one(task: Task, renamed: Task) -> None:
    cluster = Cluster(worker=(A, B), ps=(C,))
    assert with_chief(cluster, task) == (Cluster(chief=(A,), worker=(B,), ps=(C,)), renamed)


def test_a_cluster_with_a_chief_is_not_changed() -> None:
    cluster = Cluster(chief=(A,), worker=(B,), ps=(C,))
    assert with_chief(cluster, Task("worker", 0)) == (cluster, Task("worker", 0))


def make_job(ports: tuple[int, ...], **flags: Any) -> EstimatorJob:
    """The job of worker 0; the last port is that of the ps, the others are those of the workers."""
    *workers, ps = [f"127.0.0.1:{port}" for port in ports]
    hosts = ClusterFlags(
        job_name="worker", task_index="0", worker_hosts=",".join(workers), ps_hosts=ps
    )
    return tfdist.entry.create_of(EstimatorJob, JobFlags.of(cluster=hosts, **flags), {})


def test_the_settings_of_a_worker_in_an_asynchronous_job() -> None:
    with hold_ports(3) as ports:
        job = make_job(ports)
    assert not job.serves
    assert job.is_chief
    assert job.sessions.role.chief_evaluates
    assert job.num_replicas == 1
    assert job.global_batch_size(32) == 32
    assert (job.topology.num_shards, job.topology.shard) == (2, 0)
    assert list(job.sessions.config.device_filters) == ["/job:ps", "/job:chief/task:0"]
    config = json.loads(job.sessions.environment["TF_CONFIG"])
    assert config["task"] == {"type": "chief", "index": 0}
    assert sorted(config["cluster"]) == ["chief", "ps", "worker"]
    assert job.sessions.hooks() == []
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    assert job.wrap_optimizer(optimizer) is optimizer
    with tf.Graph().as_default(), tf.compat.v1.device(job.device_setter()):
        variable = tf.compat.v1.get_variable("v", [2])
        assert variable.device == "/job:ps/task:0"
        assert (variable + 1.0).device == "/job:chief/task:0"


def test_the_settings_of_a_worker_in_a_synchronous_job() -> None:
    with hold_ports(4) as ports:
        job = make_job(ports, sync=True, replicas_to_aggregate=2)
    assert job.num_replicas == 2
    assert job.global_batch_size(32) == 64
    assert job.topology.num_shards == 3
    optimizer = job.wrap_optimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    assert isinstance(optimizer, SyncReplicasOptimizer)


def train_alone(optimizer: tf.compat.v1.train.Optimizer, steps: int) -> tuple[np.ndarray, int]:
    """Runs steps that also read a batch; returns the embedding and the number of batches read."""
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        dense = tf.compat.v1.get_variable("dense", initializer=[1.0, 2.0])
        table = tf.compat.v1.get_variable("table", initializer=[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
        reads = tf.compat.v1.get_variable("reads", initializer=0, trainable=False)
        loss = tf.reduce_sum(dense * tf.nn.embedding_lookup(table, [0, 2, 0]))
        # Models with moving statistics add such a dependency.
        with tf.control_dependencies([reads.assign_add(1)]):
            train_op = optimizer.minimize(loss, step)
        hooks = []
        if isinstance(optimizer, SyncReplicasOptimizer):
            hooks.append(SyncReplicasHook([optimizer], is_chief=True))
        hooks.append(tf.compat.v1.train.StopAtStepHook(last_step=steps))
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                session.run(train_op)
                result = session.run_step_fn(
                    lambda step_context: step_context.session.run((table, reads))
                )
    return result


def test_one_synchronous_worker_gives_the_same_results_as_the_plain_optimizer() -> None:
    """Covers dense and sparse gradients; the chief's thread runs no other ops of the worker."""

    def plain() -> tf.compat.v1.train.Optimizer:
        return tf.compat.v1.train.MomentumOptimizer(0.01, 0.9)

    synchronous = SyncReplicasOptimizer(plain(), ALONE, device="/cpu:0")
    table, reads = train_alone(synchronous, steps=10)
    expected, expected_reads = train_alone(plain(), steps=10)
    np.testing.assert_allclose(table, expected, atol=1e-6)
    assert reads == expected_reads == 10


def test_gradients_and_a_global_step_are_required() -> None:
    plain = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    optimizer = SyncReplicasOptimizer(plain, ALONE, device="/cpu:0")
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", [2])
        step = tf.compat.v1.train.get_or_create_global_step()
        with pytest.raises(ValueError, match="received no gradient"):
            optimizer.apply_gradients([(None, variable)], step)
        with pytest.raises(ValueError, match="global_step: received None"):
            optimizer.apply_gradients([(tf.ones([2]), variable)])
        with pytest.raises(UsageError, match=r"job\.wrap_optimizer"):
            SyncReplicasHook([optimizer], is_chief=True).begin()


def test_a_keras_optimizer_keeps_its_settings_and_its_name() -> None:
    wrapped: list[object] = []

    def wrap(optimizer: tf.compat.v1.train.Optimizer) -> tf.compat.v1.train.Optimizer:
        wrapped.append(optimizer)
        return optimizer

    optimizer = distributed(tf.keras.optimizers.SGD(0.25, momentum=0.5), wrap)
    clone = type(optimizer).from_config(optimizer.get_config())
    assert type(clone).__name__ == "SGD"
    assert clone.get_config()["learning_rate"] == 0.25
    assert clone.get_config()["momentum"] == 0.5
    with tf.Graph().as_default():
        clone.iterations = tf.compat.v1.train.get_or_create_global_step()
        variable = tf.compat.v1.get_variable("v", initializer=1.0)
        with undistributed():
            clone.get_updates(variable * 2.0, [variable])
        assert wrapped == []
        clone.get_updates(variable * 2.0, [variable])
        assert len(wrapped) == 1


@pytest.mark.parametrize(
    "optimizer", [tf.keras.optimizers.AdamW(), tf.keras.optimizers.SGD(weight_decay=0.1)]
)
def test_an_optimizer_that_would_lose_its_settings_is_rejected(optimizer: object) -> None:
    with pytest.raises(UsageError, match=r"tf\.keras\.optimizers\.legacy") as error:
        distributed(optimizer, lambda optimizer: optimizer)
    assert error.value.received == type(optimizer).__name__


def test_two_synchronous_optimizers_in_a_graph_are_rejected() -> None:
    optimizers = [
        SyncReplicasOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.1), ALONE, device="/cpu:0"
        )
        for _ in range(2)
    ]
    with tf.Graph().as_default():
        step = tf.compat.v1.train.get_or_create_global_step()
        for name, optimizer in zip("ab", optimizers, strict=True):
            optimizer.minimize(2 * tf.compat.v1.get_variable(name, initializer=1.0), step)
        with pytest.raises(ValueError, match="several synchronous optimizers"):
            SyncReplicasHook(optimizers, is_chief=True).begin()
