"""A task of SkyPilot: `SKYPILOT_NODE_IPS` and `SKYPILOT_NODE_RANK`."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.cluster.environments.base import RankEnvironment


class SkyPilot(RankEnvironment):
    """A node of the task."""

    name = "SkyPilot"
    marks = ("SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS")
    job_variable = "SKYPILOT_TASK_ID"

    def hosts(self) -> Sequence[str]:
        return self.environ["SKYPILOT_NODE_IPS"].split()
