"""Decides the role and the strategy of this task before anything is set up.

plan = make_plan(options, os.environ)    # raises UsageError; imports no TensorFlow
plan.config.task, plan.spec.name
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.cluster import Cluster, Task
from tfdist.cluster.discovery import ClusterConfig, discover
from tfdist.coordination import startup
from tfdist.coordination.shutdown import RESTARTABLE_VARIABLE
from tfdist.errors import UsageError
from tfdist.flags import JobFlags
from tfdist.runtime.environment import DRY_RUN_VARIABLE
from tfdist.strategies import table
from tfdist.strategies.table import StrategySpec


@dataclass(frozen=True)
class Plan:
    """The role of one task in a job.

    Attributes:
      config: the cluster, this task, and the source of both.
      spec: the strategy of the training tasks.
      options: the flags; for an evaluator, without those that do not apply to it.
      for_estimators: whether the job is for Estimators and sessions.
      chief_evaluates: whether the chief of an Estimator's job evaluates it.
      is_restartable: whether a launcher on this task's machine restarts the task when it fails.
      token: the job's token; tasks with different tokens do not train together.
      is_dry_run: whether this task shows how its model is split, and does not train.
    """

    config: ClusterConfig
    spec: StrategySpec
    options: JobFlags
    for_estimators: bool = False
    chief_evaluates: bool = True
    is_restartable: bool = False
    token: str = ""
    is_dry_run: bool = False

    @property
    def cluster(self) -> Cluster:
        """The job's tasks; empty for a single process and under `horovodrun`."""
        return self.config.cluster

    @property
    def task(self) -> Task:
        """This task."""
        return self.config.task

    @property
    def evaluates(self) -> bool:
        """Whether this task is the evaluator."""
        return self.task.type == "evaluator"

    @property
    def serves(self) -> bool:
        """Whether this task serves other tasks and does not train."""
        return self.spec.serves(self.cluster, self.task, for_estimators=self.for_estimators)

    @property
    def own_spec(self) -> StrategySpec:
        """The strategy of this task; `one_device` for an evaluator, which does not train."""
        return table.row("one_device") if self.evaluates else self.spec

    @property
    def strategy_path(self) -> str:
        """The class of this task's strategy as `module:name`."""
        return table.strategy_path(self.own_spec, self.options, for_estimators=self.for_estimators)

    @property
    def variant(self) -> str:
        """The strategy and the flags that must be the same in all tasks, as text."""
        flags = [
            f"--{flag}={value}"
            for flag in table.LOCAL_SGD_FLAGS
            if (value := getattr(self.options, flag)) is not None
        ]
        return " ".join([self.spec.name, *["for Estimators"] * self.for_estimators, *flags])


def make_plan(
    options: JobFlags, environ: Mapping[str, str], *, for_estimators: bool = False
) -> Plan:
    """Decides the role of this process in the job that the flags and the environment describe.

    Args:
      options: the flags.
      environ: the environment.
      for_estimators: whether the job is for Estimators and sessions.

    Raises:
      UsageError: a flag or an environment variable is invalid; the error names it.
    """
    config = discover(options.cluster, environ)
    cluster = config.cluster
    spec = table.named(options.strategy, environ, cluster, config.source, options.num_gpus)
    table.check(spec, cluster, config.source)
    table.check_flags(spec, options)
    table.strategy_path(spec, options, for_estimators=for_estimators)
    chief_evaluates = config.has_master or not cluster.chief or spec.chief_evaluates
    if config.task.type == "evaluator":
        if for_estimators and chief_evaluates and cluster:
            raise UsageError(
                "task.type",
                received=f"evaluator, with {cluster} under {spec.name}",
                accepted="an evaluator only in a job with a chief",
                remedy="Leave the evaluator out, because the master, worker 0 or rank 0 of Horovod "
                "evaluates; or add a chief.",
            )
        options = options.without(flag for flag in spec.flags if flag != "heartbeat_timeout")
    elif cluster:
        startup.check_port(cluster, config.task)
        startup.check_addresses(cluster)
    return Plan(
        config,
        spec,
        options,
        for_estimators=for_estimators,
        chief_evaluates=chief_evaluates,
        is_restartable=RESTARTABLE_VARIABLE in environ,
        token=environ.get(startup.TOKEN_VARIABLE, ""),
        is_dry_run=DRY_RUN_VARIABLE in environ,
    )
