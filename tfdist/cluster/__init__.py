"""The cluster, this task, and the environments that describe them: flags, TF_CONFIG, engines."""

from tfdist.cluster.cluster import JOB_NAMES, TASK_TYPES, Cluster, Task, host_and_port

__all__ = ["JOB_NAMES", "TASK_TYPES", "Cluster", "Task", "host_and_port"]
