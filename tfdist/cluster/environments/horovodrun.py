"""The variables of `horovodrun`; Horovod itself exchanges the addresses."""

from __future__ import annotations

from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.config import ClusterConfig
from tfdist.cluster.environments.base import Environment
from tfdist.cluster.task_types import WORKER


class Horovodrun(Environment):
    """`horovodrun`, or a launcher of tfdist."""

    name = "horovodrun"

    def config(self) -> ClusterConfig | None:
        if "HOROVOD_RANK" not in self.environ:
            return None
        rank, size = self.number("HOROVOD_RANK"), self.environ.get("HOROVOD_SIZE")
        ranks = self.number("HOROVOD_SIZE") if size else None
        return ClusterConfig(Cluster(), Task(WORKER, rank), self.name, ranks=ranks)
