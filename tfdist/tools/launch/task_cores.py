"""Decides which cores and how many threads a task has, for every way of starting it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfdist.cluster import Task
from tfdist.process import setup as runtime
from tfdist.process.cores import ALL_CORES, CORES_VARIABLE


def cores_environment(
    task: Task, computing: Sequence[Task], divides: bool, cores: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """The cores and threads of a task, and what else TensorFlow reads when it is imported.

    Args:
      task: the task.
      computing: the tasks of its machine that compute in every step.
      divides: whether each of these is pinned to its own cores.
      cores: the cores of the machine.
      environ: the environment that the task inherits, whose variables are kept.
    """
    share = {}
    # Where no task computes, the others may use all cores.
    threads = max(1, cores // len(computing)) if computing else None
    if task in computing:
        if len(computing) > 1:
            part = f"{computing.index(task)}/{len(computing)}"
            share = {CORES_VARIABLE: part if divides else ALL_CORES}
    elif task.kind.leads:
        threads = None  # It only schedules the steps of the workers.
    elif computing and task.kind.core_share is not None:
        threads = max(1, int(cores * task.kind.core_share))
    defaults = runtime.environment(threads, environ)
    return share | {name: environ.get(name, value) for name, value in defaults.items()}
