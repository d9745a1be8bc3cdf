"""The flags that describe a cluster, and what a process knows of its job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist.cluster import task_types
from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.task_types import WORKER
from tfdist.errors import UsageError


class ClusterFlags(dict[str, str]):
    """The cluster flags that a training script was started with: texts by flag name."""

    def __init__(self, given: Iterable[tuple[str, str]] = (), /, **more: str | None) -> None:
        super().__init__(given)
        self.update({name: text for name, text in more.items() if text is not None})

    @staticmethod
    def defined() -> dict[str, str]:
        """The help of each flag, by name."""
        types = task_types.in_cluster()
        help = "the addresses (host:port) of the tasks of type {}, separated by commas"
        return {
            "job_name": f"the type of this task: {', '.join(task_types.rows())}",
            "task_index": "the index of this task among the tasks of its type, from 0",
            **{f"{name}_hosts": help.format(name) for name in types},
        }


@dataclass(frozen=True)
class ClusterConfig:
    """The cluster, this task, and their source.

    Attributes:
      cluster: the cluster; empty for a single process, and under `horovodrun`, where Horovod
        manages the addresses.
      task: this task; under `horovodrun` its index is the rank.
      source: the name of the environment: `flags`, `TF_CONFIG`, `horovodrun`, `Slurm step`, …, or
        `default`.
      has_master: whether TF_CONFIG calls the chief `master`, as in its older dialect.
      model_dir: TF_CONFIG's `model_dir`; None if it has none.
      ranks: the number of ranks under `horovodrun`; None if it is unknown.
      evidence: what was found, if there is more to say than the source.
    """

    cluster: Cluster = field(default_factory=Cluster)
    task: Task = field(default_factory=lambda: Task(WORKER, 0))
    source: str = "default"
    has_master: bool = False
    model_dir: str | None = None
    ranks: int | None = None
    evidence: str = field(default="", compare=False)

    def __str__(self) -> str:
        """This task and its job, for the first line of the log."""
        job = self.cluster if self.ranks is None else f"{self.ranks} ranks"
        return f"{self.task} of {job} ({self.evidence or self.source})"


def checked(
    source: str,
    field_of: Callable[[str], str],
    jobs: Mapping[str, Any],
    task_type: object,
    task_index: object,
) -> ClusterConfig:
    """Builds and checks the cluster and the task; errors use the source's field names."""
    try:
        cluster = Cluster(**{name: jobs.get(name) or () for name in task_types.in_cluster()})
        name: Any = task_type
        if isinstance(task_type, str):
            name = task_types.older_names().get(task_type, task_type)
        task = Task(name, whole_number(task_index))
        cluster.check(task)
    except UsageError as error:
        raise UsageError(
            field_of(error.field),
            received=task_type if error.field == "task.type" else error.received,
            accepted=error.accepted,
            remedy=error.remedy,
        ) from None
    return ClusterConfig(cluster, task, source)


def whole_number(value: Any) -> Any:
    """Converts a string of at most nine digits to an int; returns other values unchanged."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value.strip()):
        return int(value)
    return value
