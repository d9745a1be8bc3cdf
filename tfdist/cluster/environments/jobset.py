"""A pod of a Kubernetes JobSet, or of a TrainJob, which makes one; see `tfdist render jobset`.

The pod's template names the tasks of the job; the labels of the pod and Kubernetes name this one.
"""

from __future__ import annotations

import re

from tfdist.cluster import task_types
from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.environments.base import Environment

PORT = 2222
#: The numbers of tasks, by role: `ps=2,chief=1,worker=4`.
TASKS_VARIABLE = "TFDIST_TASKS"
#: The JobSet, and the replicated job in it, whose name is the role.
NAME_VARIABLE, ROLE_VARIABLE = "JOBSET_NAME", "JOBSET_ROLE"


class JobSet(Environment):
    """A pod of the JobSet."""

    name = "JobSet"
    marks = (TASKS_VARIABLE, NAME_VARIABLE, ROLE_VARIABLE, "JOB_COMPLETION_INDEX")

    def config(self) -> ClusterConfig | None:
        if not self.is_present():
            return None
        name, numbers = self.environ[NAME_VARIABLE], self._numbers()
        role, index = self.environ[ROLE_VARIABLE], self.number("JOB_COMPLETION_INDEX")
        evidence = f"{self.name} {name}"
        types = [type for type in task_types.in_cluster() if type in numbers]
        if sum(numbers[type] for type in types) < 2:
            return ClusterConfig(source=self.name, evidence=evidence)
        # The host name of a pod, in the headless service of the JobSet.
        jobs = {
            type: tuple(f"{name}-{type}-0-{place}.{name}:{PORT}" for place in range(numbers[type]))
            for type in types
        }
        cluster, task = Cluster(**jobs), Task(role, index)
        cluster.check(task)
        return ClusterConfig(cluster, task, self.name, evidence=evidence)

    def _numbers(self) -> dict[str, int]:
        text = self.environ[TASKS_VARIABLE]
        parts = [re.fullmatch(r"(\w+)=([0-9]{1,6})", part) for part in text.split(",")]
        found = {part[1]: int(part[2]) for part in parts if part}
        if not all(parts) or not {*found} <= {*task_types.rows()}:
            raise self.error(TASKS_VARIABLE, "numbers of tasks by role: ps=2,chief=1,worker=4")
        return found
