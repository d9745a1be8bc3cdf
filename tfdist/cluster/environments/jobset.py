"""A pod of a Kubernetes JobSet, or of a TrainJob, which makes one; see `tfdist render jobset`.

The pod's template names the tasks of the job; the labels of the pod and Kubernetes name this one.
"""

from __future__ import annotations

import re

from tfdist.cluster import task_types
from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.environments.base import MarkedEnvironment
from tfdist.cluster.task_types import WORKER

PORT = 2222
#: The numbers of tasks, by role: `ps=2,chief=1,worker=4`.
TASKS_VARIABLE = "TFDIST_TASKS"
#: The JobSet, and the replicated job in it, whose name is the role.
NAME_VARIABLE, ROLE_VARIABLE = "JOBSET_NAME", "JOBSET_ROLE"


class JobSet(MarkedEnvironment):
    """A pod of the JobSet."""

    name = "JobSet"
    marks = (TASKS_VARIABLE, NAME_VARIABLE, ROLE_VARIABLE, "JOB_COMPLETION_INDEX")

    def cluster(self) -> Cluster:
        name, given = self.environ[NAME_VARIABLE], self._numbers()
        numbers = {type: given[type] for type in task_types.in_cluster() if type in given}
        if sum(numbers.values()) < 2:
            return Cluster()
        # The host name of a pod, in the headless service of the JobSet.
        return Cluster(
            **{
                role: tuple(f"{name}-{role}-0-{index}.{name}:{PORT}" for index in range(count))
                for role, count in numbers.items()
            }
        )

    def task(self) -> Task:
        role = self.environ[ROLE_VARIABLE] if self.cluster() else WORKER
        return Task(role, self.number("JOB_COMPLETION_INDEX"))

    def evidence(self) -> str:
        return f"{self.name} {self.environ[NAME_VARIABLE]}"

    def _numbers(self) -> dict[str, int]:
        text = self.environ[TASKS_VARIABLE]
        parts = [re.fullmatch(r"(\w+)=([0-9]{1,6})", part) for part in text.split(",")]
        found = {part[1]: int(part[2]) for part in parts if part}
        if not all(parts) or not {*found} <= {*task_types.rows()}:
            raise self.error(TASKS_VARIABLE, "numbers of tasks by role: ps=2,chief=1,worker=4")
        return found
