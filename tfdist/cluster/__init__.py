"""Who is in a job and where: the cluster, this task, and the sources that describe them."""

from tfdist.cluster.spec import JOB_NAMES, TASK_TYPES, Cluster, Task, host_and_port

__all__ = ["JOB_NAMES", "TASK_TYPES", "Cluster", "Task", "host_and_port"]
