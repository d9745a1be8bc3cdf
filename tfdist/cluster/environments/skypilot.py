"""A task of SkyPilot: `SKYPILOT_NODE_IPS` and `SKYPILOT_NODE_RANK`."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.cluster.environments.base import RankEnvironment


class SkyPilot(RankEnvironment):
    """A node of the task."""

    name = "SkyPilot"
    order = 80
    marks = ("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK")

    def hosts(self) -> Sequence[str]:
        return self.environ["SKYPILOT_NODE_IPS"].split()

    def rank(self) -> int:
        return self.number("SKYPILOT_NODE_RANK")

    def job(self) -> str:
        return self.environ.get("SKYPILOT_TASK_ID", "")
