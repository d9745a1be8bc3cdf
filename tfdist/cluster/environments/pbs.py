"""A job of PBS whose tasks `pbsdsh` started: the file `PBS_NODEFILE` has a line for each slot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster.environments.base import RankEnvironment
from tfdist.errors import os_error_is_usage_error


class PBS(RankEnvironment):
    """A task of `pbsdsh`."""

    name = "PBS"
    marks = ("PBS_VNODENUM", "PBS_JOBID", "PBS_NODEFILE")

    def is_present(self) -> bool:
        # The first task of a job is its script.
        return super().is_present() and self.environ.get("PBS_TASKNUM") != "1"

    def hosts(self) -> Sequence[str]:
        path = self.environ["PBS_NODEFILE"]
        with os_error_is_usage_error(
            "PBS_NODEFILE", path, "a file that lists the hosts", self.remedy
        ):
            return Path(path).read_text().split()

    def job(self) -> str:
        return self.environ["PBS_JOBID"].partition(".")[0]
