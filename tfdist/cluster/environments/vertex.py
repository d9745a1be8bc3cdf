"""A custom job of Vertex AI: `CLUSTER_SPEC`, in which the first pool is the chief.

Vertex AI also sets TF_CONFIG for the usual pools. See "Distributed training" in its documentation.
"""

from __future__ import annotations

import json
from typing import Any

from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.environments.base import MarkedEnvironment
from tfdist.cluster.task_types import VERTEX, WORKER, in_cluster, named_by
from tfdist.errors import UsageError


class Vertex(MarkedEnvironment):
    """A replica of a worker pool."""

    name = VERTEX
    marks = ("CLUSTER_SPEC",)

    def cluster(self) -> Cluster:
        pools, types = self._spec("cluster"), named_by(VERTEX)
        named = {types[pool]: tuple(hosts) for pool, hosts in pools.items() if pool in types}
        jobs = {name: hosts for name, hosts in named.items() if name in in_cluster()}
        return Cluster() if sum(map(len, jobs.values())) < 2 else Cluster(**jobs)

    def task(self) -> Task:
        if not self.cluster():
            return Task(WORKER, 0)
        task = self._spec("task")
        try:
            return Task(named_by(VERTEX)[task["type"]], int(task["index"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._error() from None

    def _spec(self, part: str) -> Any:
        try:
            return json.loads(self.environ["CLUSTER_SPEC"])[part]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._error() from None

    def _error(self) -> UsageError:
        pools = ", ".join(named_by(VERTEX))
        return self.error("CLUSTER_SPEC", f"JSON with cluster and task, and the pools {pools}")
