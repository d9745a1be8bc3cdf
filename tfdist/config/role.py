"""Decides the role of this task, its strategy and its options before anything is set up.

role = find_role(flags, os.environ)      # raises UsageError; imports no TensorFlow
role.task, role.spec.name, role.options
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfdist.cluster import Cluster, Task
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.discovery import discover
from tfdist.config.flags import HEARTBEAT_TIMEOUT, JobFlags
from tfdist.config.options import Options
from tfdist.config.strategies import StrategySpec, table
from tfdist.coordination import startup
from tfdist.coordination.seal import token_of
from tfdist.coordination.shutdown import RESTARTABLE_VARIABLE
from tfdist.errors import UsageError, refuse
from tfdist.process.setup import DRY_RUN_VARIABLE

_TRAIN_KERAS = "Leave it out, or train a Keras model with fit."
# The flags that Estimators do not support, and what to do instead.
_OF_KERAS = {
    "profile_steps": "Leave it out; tf.compat.v1.train.ProfilerHook profiles an Estimator.",
    "jit_compile": _TRAIN_KERAS,
    "resume_hyperparameters": _TRAIN_KERAS,
    **dict.fromkeys(("export_steps", "export_best", "export_keep", "delta_steps"), _TRAIN_KERAS),
    "precision": "Leave it out: the model function of an Estimator chooses the dtypes.",
}


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """What a strategy gets to know of its task and of the job's flags.

    Attributes:
      cluster: the job's tasks; empty for a single process and under `horovodrun`.
      task: this task.
      options: the options of this task's strategy.
      evaluates: whether this task is the evaluator.
      serves: whether this task serves other tasks and does not train.
      num_gpus: the number of GPUs that this task uses; None for all that it sees.
      startup_timeout: seconds that the tasks of the job wait for each other before training.
      given_heartbeat_timeout: seconds without a heartbeat after which another task is considered
        lost; None for the default.
      token: the job's token; tasks with different tokens do not train together.
      is_restartable: whether a launcher on this task's machine restarts the task when it fails.
      is_dry_run: whether this task only describes its model, and connects to no other task.
    """

    cluster: Cluster = field(default_factory=Cluster)
    task: Task = field(default_factory=lambda: ClusterConfig().task)
    options: Options = field(default_factory=Options)
    evaluates: bool = False
    serves: bool = False
    num_gpus: int | None = None
    startup_timeout: float = JobFlags.startup_timeout
    given_heartbeat_timeout: float | None = None
    token: str = ""
    is_restartable: bool = False
    is_dry_run: bool = False

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds without a heartbeat after which another task is considered lost."""
        return self.given_heartbeat_timeout or HEARTBEAT_TIMEOUT


@dataclass(frozen=True, kw_only=True)
class TaskRole:
    """The role of one task in a job.

    Attributes:
      config: the cluster, this task, and the source of both.
      spec: the strategy of the training tasks.
      flags: the flags of every job.
      job_options: the options of the training tasks' strategy.
      for_estimators: whether the job is for Estimators and sessions.
      chief_evaluates: whether the chief of an Estimator's job evaluates it.
      is_restartable: whether a launcher on this task's machine restarts the task when it fails.
      token: the job's token; tasks with different tokens do not train together.
      is_dry_run: whether this task only describes its model, and connects to no other task.
    """

    config: ClusterConfig = field(default_factory=ClusterConfig)
    spec: StrategySpec = field(default_factory=lambda: table.row("one_device"))
    flags: JobFlags = field(default_factory=JobFlags)
    job_options: Options = field(default_factory=Options)
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
        """Whether this task evaluates the checkpoints."""
        return self.task.kind.evaluates

    @property
    def serves(self) -> bool:
        """Whether this task serves other tasks and does not train."""
        estimators = self.for_estimators
        is_server = self.spec.serves(self.cluster, self.task, for_estimators=estimators)
        return is_server or self.task.kind.function is not None

    @property
    def waits_for_peers(self) -> bool:
        """Whether this task waits at the startup barrier for other tasks."""
        tasks = self.cluster.tasks()
        return self.task in tasks and len(tasks) > 1 and not self.is_dry_run

    @property
    def own_spec(self) -> StrategySpec:
        """The strategy of this task: the job's, unless its type has one of its own."""
        own = self.task.kind.strategy
        return table.row(own) if own else self.spec

    @property
    def options(self) -> Options:
        """The options of this task's strategy."""
        return Options() if self.task.kind.strategy else self.job_options

    @property
    def strategy_path(self) -> str:
        """The class of this task's strategy as `module:name`."""
        return self.own_spec.strategy_path(self.options, for_estimators=self.for_estimators)

    @property
    def settings(self) -> TaskSettings:
        """What this task's strategy gets to know."""
        return TaskSettings(
            cluster=self.cluster,
            task=self.task,
            options=self.options,
            evaluates=self.evaluates,
            serves=self.serves,
            num_gpus=self.flags.num_gpus,
            startup_timeout=self.flags.startup_timeout,
            given_heartbeat_timeout=self.flags.heartbeat_timeout,
            token=self.token,
            is_restartable=self.is_restartable,
            is_dry_run=self.is_dry_run,
        )

    @property
    def job_id(self) -> str:
        """A text that the tasks of this job have in common; empty for a single process."""
        name = f"{self.cluster.digest} {self.token}".encode("utf-8", "surrogateescape")
        return hashlib.sha256(name).hexdigest()[:32] if self.cluster or self.token else ""

    @property
    def variant(self) -> str:
        """The strategy and the flags that must be the same in all tasks, as text."""
        flags = [
            f"--{name}={value}"
            for options in (self.job_options, self.flags)
            for name, option in options.defined().items()
            if option.same_in_all_tasks and (value := getattr(options, name)) != option.default
        ]
        return " ".join([self.spec.name, *["for Estimators"] * self.for_estimators, *flags])


def find_role(
    flags: JobFlags, environ: Mapping[str, str], *, for_estimators: bool = False
) -> TaskRole:
    """Decides the role of this process in the job that the flags and the environment describe.

    Args:
      flags: the flags.
      environ: the environment.
      for_estimators: whether the job is for Estimators and sessions.

    Raises:
      UsageError: a flag or an environment variable is invalid; the error names it.
    """
    config = discover(flags.cluster, environ, flags.counts)
    cluster = config.cluster
    spec = table.named(flags.strategy, environ, cluster, config.source, flags.num_gpus)
    table.check_cluster(spec, cluster, config.source)
    options = table.options_of(spec, flags.of_strategy, cluster, for_estimators=for_estimators)
    spec.check_heartbeat(flags.heartbeat_timeout)
    for name, remedy in _OF_KERAS.items() if for_estimators else ():
        refuse(flags.given(name), "only with Keras models", remedy)
    estimator = spec.estimator if for_estimators else None
    chief_evaluates = (
        config.has_master or not cluster.chief or (estimator and estimator.chief_evaluates) or False
    )
    if config.task.kind.evaluates:
        if for_estimators and chief_evaluates and cluster:
            raise UsageError(
                "task.type",
                received=f"evaluator, with {cluster} under {spec.name}",
                accepted="an evaluator only in a job with a chief",
                remedy="Leave the evaluator out, because the master, worker 0 or rank 0 of Horovod "
                "evaluates; or add a chief.",
            )
    else:
        spec.check_num_gpus(flags.num_gpus, for_estimators=for_estimators)
        if cluster:
            startup.check_port(cluster, config.task)
            startup.check_addresses(cluster)
    return TaskRole(
        config=config,
        spec=spec,
        flags=flags,
        job_options=options,
        for_estimators=for_estimators,
        chief_evaluates=chief_evaluates,
        is_restartable=RESTARTABLE_VARIABLE in environ,
        token=token_of(environ),
        is_dry_run=DRY_RUN_VARIABLE in environ,
    )
