"""`StrategySpec`, a row of the table of strategies: a description that needs no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfdist.cluster import Cluster, Task, task_types
from tfdist.config.options import Options
from tfdist.errors import refuse


@dataclass(frozen=True)
class EstimatorSpec:
    """How a strategy trains Estimators and TF1 sessions.

    Attributes:
      sessions: the subclass of `tfdist.estimator.sessions.Sessions`, as `module:name`.
      options: the class of the options that apply.
      strategy: the subclass of `tfdist.strategies.base.Strategy`, as `module:name`; that for Keras
        if it is empty.
      serving: the types of the tasks that serve and do not train.
      chief_evaluates: whether the chief evaluates, even if the cluster has a task of type chief.
      one_gpu: what to do instead, if a task cannot use several GPUs; None for what holds for Keras.
    """

    sessions: str
    options: type[Options] = Options
    strategy: str = ""
    serving: tuple[str, ...] = ()
    chief_evaluates: bool = False
    one_gpu: str | None = None


@dataclass(frozen=True)
class StrategySpec:
    """A row of the table. Classes that need TensorFlow are given as `module:name`.

    Attributes:
      name: the value of `--strategy`.
      strategy: the subclass of `tfdist.strategies.base.Strategy` for Keras and custom loops.
      options: the class of its options; each field is a flag.
      estimator: the same for Estimators; None if they are not supported.
      packages: required packages in addition to TensorFlow and Keras.
      spans_tasks: whether several tasks train together; otherwise the strategy runs in one process.
      uses_ps: whether the strategy needs parameter servers; otherwise it rejects them.
      workers_read_data: whether each worker reads a shard by itself, at its own speed, and Keras,
        which runs in the chief, sees none of it.
      workers_may_rejoin: whether the others train or wait while a lost worker is restarted, which
        then joins them.
      serving: the types of the tasks that serve and do not train, except the chief.
      shares_variables: whether several replicas update the same variables.
      elastic: whether the number of workers can change: in a restart of all tasks, or while the
        others train if `workers_may_rejoin`.
      rendezvous: the launcher's module for the tasks' rendezvous, if the tasks do not read
        TF_CONFIG: `serve_hosts(hosts, host, port)` runs the server, and `environment_of(hosts,
        rank, host, port)` returns the environment variables of a task.
      executes_several_steps: whether several steps may be one call of TensorFlow, if `job.fit`
        finds them short and the replicas do not average their weights between them.
      single_replica: whether the strategy does not distribute at all.
      fit_only: whether it trains with `fit` only, and not with custom loops.
      describes_model: whether `Strategy.describe` has something to say about a model, so that
        `tfdist run --dry_run` builds it.
      source: the source of cluster descriptions that only this strategy uses; None if there is
        none.
      one_gpu: what to do instead, if a task cannot use several GPUs; None if it can.
    """

    name: str
    strategy: str
    options: type[Options] = Options
    estimator: EstimatorSpec | None = None
    packages: tuple[str, ...] = ()
    spans_tasks: bool = False
    uses_ps: bool = False
    workers_read_data: bool = False
    workers_may_rejoin: bool = False
    serving: tuple[str, ...] = ()
    shares_variables: bool = False
    elastic: bool = False
    rendezvous: str | None = None
    executes_several_steps: bool = False
    single_replica: bool = False
    fit_only: bool = False
    describes_model: bool = False
    source: str | None = None
    one_gpu: str | None = None

    @property
    def reads_cluster(self) -> bool:
        """Whether a task needs the addresses of the others."""
        return self.spans_tasks and self.rendezvous is None

    def compute_tasks(self, cluster: Cluster) -> list[Task]:
        """The tasks that divide the cores of their machine, because they compute in every step.

        Excludes a chief whose workers serve: it only schedules their steps, except with Estimators.
        """
        only_schedules = any(task_types.row(name).trains for name in self.serving)
        return [
            task
            for task in cluster.training_tasks
            if not (only_schedules and task.kind.leads and cluster.worker)
        ]

    def restarts_alone(self, cluster: Cluster, task: Task) -> bool:
        """Whether the others go on, or wait, while a task that has failed is started again."""
        may_rejoin = self.workers_may_rejoin and task.kind.trains
        return task.kind.restarts_alone or (may_rejoin and task != cluster.chief_task)

    def way(self, for_estimators: bool) -> StrategySpec | EstimatorSpec:
        """The spec for Estimators if asked for and there is one; otherwise this spec."""
        return self.estimator if for_estimators and self.estimator else self

    def serves(self, cluster: Cluster, task: Task, *, for_estimators: bool = False) -> bool:
        """Whether a task serves other tasks and does not train."""
        types = self.way(for_estimators).serving
        return task.type in types and bool(cluster) and task != cluster.chief_task

    def strategy_path(self, options: Options, *, for_estimators: bool = False) -> str:
        """The class that a job with these options uses, as `module:name`."""
        return options.implementation or self.way(for_estimators).strategy or self.strategy

    def check_num_gpus(self, num_gpus: int | None, *, for_estimators: bool = False) -> None:
        """Checks `--num_gpus`, which must be at most 1 if a task trains on one device.

        Raises:
          UsageError: it is more than 1.
        """
        way = self.way(for_estimators)
        remedy = way.one_gpu or self.one_gpu
        if remedy is not None and num_gpus is not None and num_gpus > 1:
            suffix = ", for Estimators and sessions" if way is not self else ""
            refuse({"num_gpus": num_gpus}, f"0 or 1 under {self.name}{suffix}", remedy)

    def check_heartbeat(self, seconds: Any) -> None:
        """Checks that `--heartbeat_timeout` has an effect, if it was given.

        Raises:
          UsageError: no task watches another one.
        """
        if seconds is not None and not self.spans_tasks:
            accepted = f"not supported with --strategy={self.name}"
            remedy = "Leave it out, because no task waits for another one."
            refuse({"heartbeat_timeout": seconds}, accepted, remedy)
