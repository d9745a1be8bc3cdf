"""The strategies by name: one small module each, imported when it is chosen.

job_class = load("multi_worker_mirrored")
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tfdist.cluster import Cluster
from tfdist.errors import UsageError

if TYPE_CHECKING:
    from tfdist.strategies.base import Job

#: What `tfdist run` tells its tasks in their environment; `--strategy` goes before it.
STRATEGY_VARIABLE = "TFDIST_STRATEGY"


@dataclass(frozen=True)
class Strategy:
    """What is known of a strategy without importing TensorFlow.

    Attributes:
      class_name: its subclass of `Job`, in the module of the strategy's name.
      spans_tasks: whether several tasks train together; else it is for one process.
      uses_ps: whether it needs parameter servers; else it takes none.
    """

    class_name: str
    spans_tasks: bool = False
    uses_ps: bool = False


TABLE = {
    "one_device": Strategy("OneDevice"),
    "mirrored": Strategy("Mirrored"),
    "central_storage": Strategy("CentralStorage"),
    "parameter_server": Strategy("ParameterServer", spans_tasks=True, uses_ps=True),
    "multi_worker_mirrored": Strategy("MultiWorkerMirrored", spans_tasks=True),
    "horovod": Strategy("Horovod", spans_tasks=True),
}
NAMES = tuple(TABLE)


def choose(cluster: Cluster, source: str) -> str:
    """The strategy of a job that names none, from the shape of its cluster."""
    if source == "horovodrun":
        return "horovod"
    if cluster.ps:
        return "parameter_server"
    return "multi_worker_mirrored" if len(cluster.trainers) > 1 else "one_device"


def check_name(name: str) -> None:
    """Raises UsageError where the table has no strategy of that name."""
    if name not in TABLE:
        raise UsageError(
            "--strategy",
            received=name,
            accepted=", ".join(["auto", *NAMES]),
            remedy="Choose one of these.",
        )


def check(name: str, cluster: Cluster) -> None:
    """Checks that there is a strategy of that name, and that it can be had on that cluster.

    Raises:
      UsageError: the name is in no row of the table, or the cluster has tasks that it cannot use,
        or lacks those that it needs.
    """
    check_name(name)
    strategy = TABLE[name]
    accepted = remedy = None
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


def load(name: str) -> type[Job]:
    """The class of the strategy `name` of the table."""
    module = importlib.import_module(f"tfdist.strategies.{name}")
    job_class: type[Job] = getattr(module, TABLE[name].class_name)
    return job_class
