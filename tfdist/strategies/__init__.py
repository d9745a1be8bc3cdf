"""The strategies by name: one small module each, imported when it is chosen.

check("multi_worker_mirrored", cluster, source="TF_CONFIG")
job_class = load("multi_worker_mirrored")
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfdist.cluster import Cluster, Task
from tfdist.errors import UsageError

if TYPE_CHECKING:
    from tfdist.flags import JobFlags
    from tfdist.strategies.base import Job

#: What `tfdist run` tells its tasks in their environment; `--strategy` goes before it.
STRATEGY_VARIABLE = "TFDIST_STRATEGY"


@dataclass(frozen=True)
class Strategy:
    """What is known of a strategy without importing TensorFlow.

    Attributes:
      keras: its subclass of `Job` for Keras and custom loops, with its module.
      estimator: that for Estimators and sessions; None where they cannot be had.
      periodic: that for Keras where the tasks meet every `--sync_period` steps; None where they
        cannot.
      spans_tasks: whether several tasks train together; else it is for one process.
      uses_ps: whether it needs parameter servers; else it takes none.
      flags: the flags that only some strategies have a use for and this one takes.
    """

    keras: str
    estimator: str | None = None
    periodic: str | None = None
    spans_tasks: bool = False
    uses_ps: bool = False
    flags: tuple[str, ...] = ()


#: The flags of training apart; the first makes sense by itself, the others with it.
PERIODIC_FLAGS = ("sync_period", "outer_learning_rate", "outer_momentum")

TABLE = {
    "one_device": Strategy("one_device.OneDevice", "one_device.OneDevice"),
    "mirrored": Strategy("mirrored.Mirrored", "mirrored.Mirrored", flags=("num_cpu_devices",)),
    "central_storage": Strategy("central_storage.CentralStorage", flags=("num_cpu_devices",)),
    "parameter_server": Strategy(
        "parameter_server.ParameterServer",
        "between_graph.BetweenGraph",
        spans_tasks=True,
        uses_ps=True,
        flags=("variable_partitions", "replicas_to_aggregate", "heartbeat_timeout"),
    ),
    "multi_worker_mirrored": Strategy(
        "multi_worker_mirrored.MultiWorkerMirrored",
        "multi_worker_mirrored.MultiWorkerMirrored",
        spans_tasks=True,
        periodic="periodic_multi_worker.PeriodicMultiWorker",
        flags=("all_reduce", "gradient_dtype", "heartbeat_timeout", *PERIODIC_FLAGS),
    ),
    "horovod": Strategy(
        "horovod.Horovod",
        "horovod.Horovod",
        periodic="horovod.Horovod",
        spans_tasks=True,
        flags=("gradient_dtype", "heartbeat_timeout", *PERIODIC_FLAGS),
    ),
}
NAMES = tuple(TABLE)

#: What `--all_reduce` may be; the upper-case names of `CommunicationImplementation`.
ALL_REDUCES = ("auto", "ring", "nccl")

#: What `--gradient_dtype` may be, by strategy; Horovod sums no bfloat16.
GRADIENT_DTYPES = {"multi_worker_mirrored": ("bfloat16", "float16"), "horovod": ("float16",)}


def choose(cluster: Cluster, source: str, num_gpus: int | None = None) -> str:
    """The strategy of a job that names none, from its cluster and the GPUs asked for a task."""
    if source == "horovodrun":
        return "horovod"
    if cluster.ps:
        return "parameter_server"
    if len(cluster.trainers) > 1:
        return "multi_worker_mirrored"
    return "mirrored" if num_gpus is not None and num_gpus > 1 else "one_device"


def named(
    name: str,
    environ: Mapping[str, str],
    cluster: Cluster,
    source: str,
    num_gpus: int | None = None,
) -> str:
    """The strategy that is meant by `--strategy=name`, which may be `auto`."""
    if name == "auto":
        name = environ.get(STRATEGY_VARIABLE) or "auto"
    return choose(cluster, source, num_gpus) if name == "auto" else name


def computing(name: str, cluster: Cluster) -> list[Task]:
    """The tasks of a cluster that compute in every step, and divide a machine's cores.

    The chief of a ps job may compute too (an Estimator's) or plan the others' steps (Keras's).
    """
    uses_ps = TABLE[name].uses_ps
    return [task for task in cluster.trainers if not (uses_ps and task.type == "chief")]


def check_name(name: str) -> None:
    """Raises UsageError where the table has no strategy of that name."""
    if name not in TABLE:
        raise UsageError(
            "--strategy",
            received=name,
            accepted=", ".join(["auto", *NAMES]),
            remedy="Choose one of these.",
        )


def check(name: str, cluster: Cluster, source: str) -> None:
    """Checks that there is a strategy of that name, and that it can be had on that cluster.

    Raises:
      UsageError: the name is in no row of the table, the cluster has tasks that the strategy cannot
        use or lacks those that it needs, or `horovodrun` started the job for another strategy.
    """
    check_name(name)
    strategy = TABLE[name]
    accepted = remedy = None
    if source == "horovodrun" and name != "horovod":
        raise UsageError(
            "--strategy",
            received=f"{name} under horovodrun",
            accepted="horovod under horovodrun",
            remedy="Leave it out, or start the script without horovodrun.",
        )
    if strategy.uses_ps and not cluster.ps:
        accepted, remedy = "at least one worker and one ps", "Add ps to the cluster"
    elif cluster.ps and not strategy.uses_ps:
        accepted, remedy = "no ps", "Take the ps out of the cluster"
    elif len(cluster.trainers) > 1 and not strategy.spans_tasks:
        accepted, remedy = "one process", "Leave the cluster out"
    if accepted is not None:
        raise UsageError(
            "--strategy",
            received=f"{name} with {cluster}",
            accepted=f"{name} with {accepted}",
            remedy=f"{remedy}, or choose another strategy.",
        )


def check_flags(name: str, options: JobFlags) -> None:
    """Raises UsageError for a flag that was given and cannot apply to the strategy `name`."""
    for flag in sorted({flag for strategy in TABLE.values() for flag in strategy.flags}):
        value = getattr(options, flag)
        if value is not None and flag not in TABLE[name].flags:
            raise UsageError(
                f"--{flag}",
                received=value,
                accepted=f"nothing under {name}",
                remedy="Leave it out, or choose a strategy that it applies to.",
            )
    for flag in PERIODIC_FLAGS[1:]:
        value = getattr(options, flag)
        if value is not None and options.sync_period is None:
            raise UsageError(
                f"--{flag}",
                received=value,
                accepted="it with --sync_period",
                remedy="Give --sync_period, or leave it out.",
            )
    if options.gradient_dtype not in (None, *GRADIENT_DTYPES.get(name, ())):
        raise UsageError(
            "--gradient_dtype",
            received=options.gradient_dtype,
            accepted=f"{' or '.join(GRADIENT_DTYPES[name])} under {name}",
            remedy="Choose one of these, or leave it out.",
        )
    if options.gradient_dtype and options.sync_period is not None:
        raise UsageError(
            "--gradient_dtype",
            received=f"{options.gradient_dtype} with --sync_period",
            accepted="one of them: tasks that train apart send no gradients",
            remedy="Leave one of them out.",
        )
    if options.all_reduce not in (None, *ALL_REDUCES):
        raise UsageError(
            "--all_reduce",
            received=options.all_reduce,
            accepted=", ".join(ALL_REDUCES),
            remedy="Choose one of these.",
        )


def modules(name: str) -> tuple[str, ...]:
    """The modules that a task of the strategy `name`, or of `auto`, imports in any case."""
    strategy = TABLE.get(name)
    own = (f"tfdist.strategies.{strategy.keras.split('.')[0]}",) if strategy else ()
    return ("tensorflow", "tfdist.job", "tfdist.callbacks", *own)


def load(name: str, *, estimator: bool = False, periodic: bool = False) -> type[Job]:
    """The class of the strategy `name` of the table, for Keras or for Estimators.

    `periodic` says whether the tasks are to meet every so many steps only.

    Raises:
      UsageError: Estimators cannot be had under this strategy.
      ImportError: a package that the strategy needs is not installed; it names the remedy.
    """
    if estimator and periodic:
        raise UsageError(
            "--sync_period",
            received="it for an Estimator",
            accepted="it for a Keras model",
            remedy="Leave it out.",
        )
    strategy = TABLE[name]
    keras = strategy.periodic if periodic else strategy.keras
    path = strategy.estimator if estimator else keras
    if path is None:
        raise UsageError(
            "--strategy",
            received=f"{name} for an Estimator",
            accepted=", ".join(name for name, strategy in TABLE.items() if strategy.estimator),
            remedy="Choose one of these.",
        )
    module, class_name = path.split(".")
    job_class: type[Job] = getattr(
        importlib.import_module(f"tfdist.strategies.{module}"), class_name
    )
    return job_class
