"""A custom job of Vertex AI: `CLUSTER_SPEC`, in which the first pool is the chief.

Vertex AI also sets TF_CONFIG for the usual pools. See "Distributed training" in its documentation.
"""

from __future__ import annotations

import json
from typing import Any

from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.environments.base import Environment
from tfdist.errors import UsageError

_TYPES = {
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}


class Vertex(Environment):
    """A replica of a worker pool."""

    name = "Vertex AI"
    order = 60
    marks = ("CLUSTER_SPEC",)

    def cluster(self) -> Cluster:
        pools = self._spec("cluster")
        jobs = {_TYPES[pool]: tuple(hosts) for pool, hosts in pools.items() if pool in _TYPES}
        jobs.pop("evaluator", None)
        return Cluster() if sum(map(len, jobs.values())) < 2 else Cluster(**jobs)

    def task(self) -> Task:
        if not self.cluster():
            return Task("worker", 0)
        task = self._spec("task")
        try:
            return Task(_TYPES[task["type"]], int(task["index"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._error() from None

    def _spec(self, part: str) -> Any:
        try:
            return json.loads(self.environ["CLUSTER_SPEC"])[part]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._error() from None

    def _error(self) -> UsageError:
        return UsageError(
            "CLUSTER_SPEC",
            received=self.environ["CLUSTER_SPEC"][:80],
            accepted=f"JSON with cluster and task, and the pools {', '.join(_TYPES)}",
            remedy="Unset it, or pass the cluster flags.",
        )
