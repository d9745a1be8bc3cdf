"""The workers of an `in_graph` job, arranged as replicas of a pipeline of stages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import tensorflow as tf

from tfdist.cluster import Cluster, Task


@dataclass(frozen=True)
class Grid:
    """Where each stage of each replica runs: stage s of replica r on worker r * num_stages + s.

    Attributes:
      workers: the tasks that compute.
      devices: the device of each worker.
      client: the CPU of the task that runs the training loop and reads the data.
      num_stages: the number of stages of each replica.
    """

    workers: tuple[Task, ...]
    devices: tuple[str, ...]
    client: str
    num_stages: int

    @property
    def num_replicas(self) -> int:
        """The number of replicas."""
        return len(self.workers) // self.num_stages

    def device(self, replica: int, stage: int) -> str:
        """The device of a stage."""
        return self.devices[replica * self.num_stages + stage]

    def workers_of(self, stage: int) -> tuple[Task, ...]:
        """The workers that run a stage, one for each replica."""
        return self.workers[stage :: self.num_stages]


def grid_of(cluster: Cluster, client: Task, stages: int, *, is_connected: bool = True) -> Grid:
    """Arranges the workers of a cluster.

    Args:
      cluster: the job's tasks; if there is no other task, this process is the only worker.
      client: this task.
      stages: the number of stages, a divisor of the number of workers.
      is_connected: whether this process is connected to the workers; otherwise its own device
        stands for those of all workers.
    """
    tasks_of_type = (task for task in cluster.training_tasks if not task.kind.leads)
    workers = tuple(tasks_of_type) or (client,)
    tasks = [client] if workers == (client,) else [*workers, client]
    gpus = {device.name for device in tf.config.list_logical_devices("GPU")}
    is_alone = len(tasks) == 1 or not is_connected
    roots = ["" if is_alone else f"/job:{t.type}/replica:0/task:{t.index}" for t in tasks]
    devices = [_compute_device(root, gpus) for root in roots[: len(workers)]]
    return Grid(workers, tuple(devices), f"{roots[-1]}/device:CPU:0", stages)


def _compute_device(task: str, gpus: Collection[str]) -> str:
    gpu = f"{task}/device:GPU:0"
    return gpu if any(name.endswith(gpu) for name in gpus) else f"{task}/device:CPU:0"
