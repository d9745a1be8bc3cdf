"""The variables of `horovodrun`, under which Horovod manages the addresses."""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.cluster.cluster import Cluster, Task
from tfdist.cluster.config import ClusterConfig, whole_number
from tfdist.cluster.environments.base import Described
from tfdist.cluster.task_types import WORKER
from tfdist.errors import UsageError


class Horovodrun(Described):
    """`horovodrun`, or a launcher of tfdist."""

    name = "horovodrun"
    order = 20

    def describe(self) -> ClusterConfig | None:
        return from_horovodrun(self.environ)


def from_horovodrun(environ: Mapping[str, str]) -> ClusterConfig | None:
    """Reads this process's rank under `horovodrun`; None if that did not start the process."""
    rank = environ.get("HOROVOD_RANK")
    if rank is None:
        return None
    number = whole_number(rank)
    if not isinstance(number, int) or number < 0:
        raise UsageError(
            "HOROVOD_RANK",
            received=rank,
            accepted="an integer of at least 0",
            remedy="Start the script with horovodrun, or unset the variable.",
        )
    size = whole_number(environ.get("HOROVOD_SIZE"))
    ranks = size if isinstance(size, int) else None
    return ClusterConfig(Cluster(), Task(WORKER, number), "horovodrun", ranks=ranks)
