"""The table of strategies: the properties of each one, available without importing TensorFlow.

    spec = named("auto", environ, cluster, source="TF_CONFIG")
    check(spec, cluster, source="TF_CONFIG")
    strategy_class = load(spec.strategy)

A strategy is one module and one row. `register` adds the row of a user-defined strategy.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tfdist.cluster import Cluster, Task
from tfdist.errors import UsageError

if TYPE_CHECKING:
    from tfdist.flags import JobFlags

#: The environment variable in which `tfdist run` passes the strategy to its tasks. The script's own
#: `--strategy` takes precedence.
STRATEGY_VARIABLE = "TFDIST_STRATEGY"


@dataclass(frozen=True)
class StrategySpec:
    """A row of the table. Classes are given as `module:name` and imported on use.

    Attributes:
      name: the value of `--strategy`.
      strategy: the subclass of `tfdist.strategies.base.Strategy` for Keras and custom loops.
      local_sgd: the subclass for `--sync_period`; None if the strategy does not support it.
      estimator: the subclass for Estimators and sessions; None if they are not supported.
      sessions: the subclass of `tfdist.estimator.sessions.Sessions` for `estimator`.
      packages: required packages in addition to TensorFlow and Keras.
      spans_tasks: whether several tasks train together; otherwise the strategy runs in one process.
      uses_ps: whether the strategy needs parameter servers; otherwise it rejects them.
      serving: the types of the tasks that serve and do not train, except the chief.
      estimator_serving: the same for Estimators.
      chief_evaluates: whether the chief of an Estimator's job evaluates it, even if the cluster
        has a task of type chief.
      shares_variables: whether several replicas update the same variables.
      elastic: whether a job can restart with a different number of tasks.
      rendezvous: the launcher's module for the tasks' rendezvous, if the tasks do not read
        TF_CONFIG: `serve_hosts(hosts, host, port)` runs the server, and `environment_of(hosts,
        rank, host, port)` returns the environment variables of a task.
      single_replica: whether the strategy does not distribute at all.
      fit_only: whether it trains with `fit` only, and not with custom loops.
      source: the source of cluster descriptions that only this strategy uses; None if there is
        none.
      flags: the flags of `tfdist.flags` that only some strategies support, including this one.
      choices: by flag, the accepted values.
    """

    name: str
    strategy: str
    local_sgd: str | None = None
    estimator: str | None = None
    sessions: str = "tfdist.estimator.sessions:Sessions"
    packages: tuple[str, ...] = ()
    spans_tasks: bool = False
    uses_ps: bool = False
    serving: tuple[str, ...] = ()
    estimator_serving: tuple[str, ...] = ()
    chief_evaluates: bool = False
    shares_variables: bool = False
    elastic: bool = False
    rendezvous: str | None = None
    single_replica: bool = False
    fit_only: bool = False
    source: str | None = None
    flags: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def compute_tasks(self, cluster: Cluster) -> list[Task]:
        """The tasks that divide the cores of their machine, because they compute in every step.

        Excludes a chief whose workers serve: it only schedules their steps, except with Estimators.
        """
        only_schedules = "worker" in self.serving
        return [
            task
            for task in cluster.training_tasks
            if not (only_schedules and task.type == "chief" and cluster.worker)
        ]

    def serves(self, cluster: Cluster, task: Task, *, for_estimators: bool = False) -> bool:
        """Whether a task serves other tasks and does not train."""
        types = self.estimator_serving if for_estimators else self.serving
        return task.type in types and bool(cluster) and task != cluster.chief_task


#: The flags of local SGD; the others need the first.
LOCAL_SGD_FLAGS = ("sync_period", "outer_learning_rate", "outer_momentum")

# Flags that do not apply to Estimators.
_KERAS_FLAGS = ("sync_period", "pack_transfers", "partition_bytes")

TABLE: dict[str, StrategySpec] = {}


def register(spec: StrategySpec) -> None:
    """Adds a row to the table.

    Raises:
      ValueError: the table has a row of that name.
    """
    if spec.name in TABLE:
        raise ValueError(f"strategy {spec.name!r} is already in the table.")
    TABLE[spec.name] = spec


for _spec in (
    StrategySpec(
        "one_device",
        "tfdist.strategies.one_device:OneDevice",
        estimator="tfdist.strategies.one_device:OneDevice",
        sessions="tfdist.estimator.sessions:LocalSessions",
        single_replica=True,
    ),
    StrategySpec(
        "mirrored",
        "tfdist.strategies.mirrored:Mirrored",
        estimator="tfdist.strategies.mirrored:Mirrored",
        sessions="tfdist.estimator.mirrored:MirroredSessions",
        flags=("num_cpu_devices",),
    ),
    StrategySpec(
        "central_storage",
        "tfdist.strategies.central_storage:CentralStorage",
        shares_variables=True,
        flags=("num_cpu_devices",),
    ),
    StrategySpec(
        "parameter_server",
        "tfdist.strategies.parameter_server.strategy:ParameterServer",
        estimator="tfdist.estimator.between_graph:BetweenGraph",
        sessions="tfdist.estimator.between_graph:BetweenGraphSessions",
        spans_tasks=True,
        uses_ps=True,
        serving=("worker", "ps"),
        estimator_serving=("ps",),
        shares_variables=True,
        flags=(
            "variable_partitions",
            "sync",
            "partition_bytes",
            "replicas_to_aggregate",
            "heartbeat_timeout",
            "pack_transfers",
        ),
    ),
    StrategySpec(
        "multi_worker_mirrored",
        "tfdist.strategies.multi_worker_mirrored:MultiWorkerMirrored",
        local_sgd="tfdist.strategies.multi_worker_local_sgd:MultiWorkerLocalSGD",
        estimator="tfdist.strategies.multi_worker_mirrored:MultiWorkerMirrored",
        sessions="tfdist.estimator.multi_worker_mirrored:MultiWorkerMirroredSessions",
        spans_tasks=True,
        elastic=True,
        flags=("all_reduce", "gradient_dtype", "heartbeat_timeout", *LOCAL_SGD_FLAGS),
        choices={
            "all_reduce": ("auto", "ring", "nccl"),
            "gradient_dtype": ("bfloat16", "float16"),
        },
    ),
    StrategySpec(
        "in_graph",
        "tfdist.strategies.in_graph.strategy:InGraph",
        spans_tasks=True,
        serving=("worker",),
        fit_only=True,
        flags=("stages", "microbatches", "balance", "heartbeat_timeout"),
        choices={"balance": ("parameters", "time")},
    ),
    StrategySpec(
        "horovod",
        "tfdist.strategies.horovod:Horovod",
        local_sgd="tfdist.strategies.horovod:Horovod",
        estimator="tfdist.strategies.horovod:Horovod",
        sessions="tfdist.estimator.horovod:HorovodSessions",
        packages=("horovod",),
        spans_tasks=True,
        chief_evaluates=True,
        elastic=True,
        rendezvous="tfdist.coordination.horovod_rendezvous",
        source="horovodrun",
        flags=("gradient_dtype", "heartbeat_timeout", *LOCAL_SGD_FLAGS),
        # Horovod cannot sum bfloat16.
        choices={"gradient_dtype": ("float16",)},
    ),
):
    register(_spec)


def choose(cluster: Cluster, source: str, num_gpus: int | None = None) -> str:
    """The default strategy for a cluster and the number of GPUs per task."""
    for spec in TABLE.values():
        if spec.source == source:
            return spec.name
    if cluster.ps:
        return "parameter_server"
    if len(cluster.training_tasks) > 1:
        return "multi_worker_mirrored"
    return "mirrored" if num_gpus is not None and num_gpus > 1 else "one_device"


def named(
    name: str,
    environ: Mapping[str, str],
    cluster: Cluster,
    source: str,
    num_gpus: int | None = None,
) -> StrategySpec:
    """The row for `--strategy=name`; `auto` chooses from the cluster.

    Raises:
      UsageError: the table has no strategy of that name.
    """
    if name == "auto":
        name = environ.get(STRATEGY_VARIABLE) or "auto"
    return row(choose(cluster, source, num_gpus) if name == "auto" else name)


def row(name: str) -> StrategySpec:
    """The row of a strategy.

    Raises:
      UsageError: the table has no strategy of that name.
    """
    if name not in TABLE:
        raise UsageError(
            "--strategy",
            received=name,
            accepted=", ".join(["auto", *TABLE]),
            remedy="Choose one of these.",
        )
    return TABLE[name]


def check(spec: StrategySpec, cluster: Cluster, source: str) -> None:
    """Checks that a strategy can train on a cluster.

    Raises:
      UsageError: the cluster has tasks that the strategy cannot use, lacks tasks that it needs, or
        comes from a source for another strategy.
    """
    name = spec.name
    accepted = remedy = None
    owners = [other.name for other in TABLE.values() if other.source == source]
    if owners and name not in owners:
        raise UsageError(
            "--strategy",
            received=f"{name} under {source}",
            accepted=f"{owners[0]} under {source}",
            remedy=f"Leave it out, or start the script without {source}.",
        )
    if spec.uses_ps and not cluster.ps:
        accepted, remedy = "at least one worker and one ps", "Add ps to the cluster"
    elif cluster.ps and not spec.uses_ps:
        accepted, remedy = "no ps", "Remove the ps from the cluster"
    elif len(cluster.training_tasks) > 1 and not spec.spans_tasks:
        accepted, remedy = "one process", "Leave the cluster out"
    if accepted is not None:
        raise UsageError(
            "--strategy",
            received=f"{name} with {cluster}",
            accepted=f"{name} with {accepted}",
            remedy=f"{remedy}, or choose another strategy.",
        )


def check_flags(spec: StrategySpec, options: JobFlags) -> None:
    """Checks that the strategy supports all flags that were given.

    Raises:
      UsageError: it does not support a flag or its value.
    """
    for flag in sorted({flag for other in TABLE.values() for flag in other.flags}):
        value = options.value(flag)
        if value is not None and flag not in spec.flags:
            raise UsageError(
                f"--{flag}",
                received=value,
                accepted=f"not supported with --strategy={spec.name}",
                remedy="Leave it out, or choose a strategy that supports it.",
            )
    for flag, values in spec.choices.items():
        value = options.value(flag)
        if value is not None and value not in values:
            raise UsageError(
                f"--{flag}",
                received=value,
                accepted=f"{', '.join(values)} with --strategy={spec.name}",
                remedy="Choose one of these, or leave it out.",
            )
    if options.sync_period is None:
        for flag in LOCAL_SGD_FLAGS[1:]:
            value = options.value(flag)
            if value is not None:
                raise UsageError(
                    f"--{flag}",
                    received=value,
                    accepted="only together with --sync_period",
                    remedy="Add --sync_period, or leave it out.",
                )
    elif options.gradient_dtype:
        raise UsageError(
            "--gradient_dtype",
            received=f"{options.gradient_dtype} with --sync_period",
            accepted="one of these flags, because local SGD sends no gradients",
            remedy="Leave one of them out.",
        )


def strategy_path(spec: StrategySpec, options: JobFlags, *, for_estimators: bool = False) -> str:
    """The class of a row that a job uses, as `module:name`.

    Raises:
      UsageError: the strategy or a flag does not support Estimators.
    """
    if not for_estimators:
        return spec.local_sgd if options.sync_period and spec.local_sgd else spec.strategy
    for flag in _KERAS_FLAGS:
        if (value := options.value(flag)) is not None:
            raise UsageError(
                f"--{flag}",
                received=value,
                accepted="not supported for Estimators",
                remedy="Leave it out, or train a Keras model.",
            )
    if spec.estimator is None:
        raise UsageError(
            "--strategy",
            received=f"{spec.name} for an Estimator",
            accepted=", ".join(other.name for other in TABLE.values() if other.estimator),
            remedy="Choose one of these.",
        )
    return spec.estimator


def load(path: str) -> Any:
    """Imports the object that `module:name` names.

    Raises:
      ImportError: a required package is not installed; the message has the remedy.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
