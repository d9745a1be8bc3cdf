"""The `parameter_server` strategy for Estimators and sessions: one graph per training task.

The variables are on the ps. A training task applies its gradients to them asynchronously, or with
`--sync` through `SyncReplicasOptimizer`. The chief trains like the workers, as usual in
`tf.estimator`. Worker 0 is the chief of a job without a task of type chief.

A worker computes on one device. (TensorFlow's CIFAR-10 tutorial also splits a worker's batch over
several GPUs; with tfdist, start one worker per GPU.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.cluster import Cluster, Task
from tfdist.cluster.task_types import CHIEF, WORKER
from tfdist.config.role import TaskRole
from tfdist.config.strategies.rows import SynchronousUpdates
from tfdist.estimator.optimizers import distributed
from tfdist.estimator.sessions import Sessions
from tfdist.estimator.sync_replicas import SyncReplicasHook, SyncReplicasOptimizer
from tfdist.process.devices import use_devices
from tfdist.strategies.base import Strategy, Topology
from tfdist.strategies.serving import serve_until_end


class BetweenGraph(Strategy[SynchronousUpdates]):
    """Between-graph replication, with a TensorFlow server in each task."""

    name = "parameter_server"

    def set_up(self, options: SynchronousUpdates) -> None:
        if self.task.kind.serves:
            use_devices(0)
        else:
            place = self.cluster.local_rank_of(self.task, self.cluster.training_tasks)
            use_devices(self.settings.num_gpus, place=place)
        self.tf_strategy = tf.distribute.get_strategy()

    @property
    def topology(self) -> Topology:
        tasks, options = self.cluster.training_tasks, self.options
        own = str(self.task)
        peers = tuple(map(str, tasks)) if options.sync else (own,)
        return Topology(
            own,
            peers,
            is_chief=self.task == self.cluster.chief_task,
            num_replicas=options.gradients_per_update(self.cluster) or 1,
            num_shards=len(tasks),
            shard=tasks.index(self.task) if self.task in tasks else 0,
        )

    def _refuse(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError(
            "This job is for Estimators and sessions. Call tfdist.init() to use Keras's fit."
        )

    # What only Keras's `fit` needs.
    scope = wrap_optimizer = distribute = _refuse

    def serve(self) -> None:
        if not self.settings.serves:
            super().serve()
        chief = self.cluster.chief_task
        others = [task for task in self.cluster.training_tasks if task != chief]
        # The workers of an Estimator do not wait for each other, so none of them is watched.
        serve_until_end(self.settings, self.preemption, others, watches_chief=False)


class BetweenGraphSessions(Sessions):
    """Sessions on this task's TensorFlow server, with variables on the ps."""

    has_session_code = True

    def __init__(self, strategy: Strategy[Any], role: TaskRole) -> None:
        super().__init__(strategy, role)
        self._optimizers: list[SyncReplicasOptimizer] = []
        self._has_trained = False
        self._cluster, self._task = with_chief(strategy.cluster, strategy.task)
        self._server = tf.distribute.Server(
            self._cluster.jobs(in_tensorflow=True),
            job_name=self._task.type,
            task_index=self._task.index,
            protocol="grpc",
            # The server's thread settings apply to the sessions that it runs.
            config=super().config,
        )

    @property
    def environment(self) -> dict[str, str]:
        return {"TF_CONFIG": self._cluster.tf_config(self._task)}

    @property
    def master(self) -> str:
        return str(self._server.target)

    @property
    def config(self) -> tf.compat.v1.ConfigProto:
        config = super().config
        # Without device filters a session waits for all other workers.
        config.device_filters.extend(["/job:ps", self._device])
        return config

    @property
    def _device(self) -> str:
        return f"/job:{self._task.type}/task:{self._task.index}"

    def device_setter(self) -> Callable[[tf.Operation], str] | None:
        super().device_setter()
        return tf.compat.v1.train.replica_device_setter(
            cluster=self._cluster.jobs(in_tensorflow=True), worker_device=self._device
        )

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Returns the optimizer; with `--sync`, wraps it to aggregate the workers' gradients."""
        if not self.strategy.options.sync:
            return optimizer
        return distributed(optimizer, self._synchronized)

    def begin_training(self) -> None:
        if self._has_trained:
            raise RuntimeError(
                "A parameter-server job trains only once, because its ps and workers exit after "
                "the first training. Use train_and_evaluate instead of calling train repeatedly."
            )
        self._has_trained = True

    def hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        if not self.strategy.options.sync:
            return []
        return [SyncReplicasHook(self._optimizers, self.strategy.topology.is_chief)]

    def _synchronized(self, optimizer: tf.compat.v1.train.Optimizer) -> SyncReplicasOptimizer:
        wrapped = SyncReplicasOptimizer(optimizer, self.strategy.topology, self._device)
        self._optimizers.append(wrapped)
        return wrapped


def with_chief(cluster: Cluster, task: Task) -> tuple[Cluster, Task]:
    """The cluster and the task as `tf.estimator` needs them, with worker 0 renamed to chief."""
    if cluster.chief:
        return cluster, task
    renamed = Cluster(chief=cluster.worker[:1], worker=cluster.worker[1:], ps=cluster.ps)
    if not task.kind.trains:
        return renamed, task
    return renamed, Task(WORKER, task.index - 1) if task.index else Task(CHIEF, 0)
