"""The cluster, this task, and the environments that describe them: flags, TF_CONFIG, engines."""

from tfdist.cluster.cluster import Cluster, Task, host_and_port

__all__ = ["Cluster", "Task", "host_and_port"]
