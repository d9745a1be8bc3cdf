"""A job of PBS whose tasks `pbsdsh` started: the file `PBS_NODEFILE` has a line for each slot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster.environments.base import RankEnvironment
from tfdist.errors import UsageError


class PBS(RankEnvironment):
    """A task of `pbsdsh`."""

    name = "PBS"
    order = 100
    marks = ("PBS_JOBID", "PBS_NODEFILE", "PBS_VNODENUM")

    def is_present(self) -> bool:
        # The first task of a job is its script.
        return super().is_present() and self.environ.get("PBS_TASKNUM") != "1"

    def hosts(self) -> Sequence[str]:
        path = self.environ["PBS_NODEFILE"]
        try:
            return Path(path).read_text().split()
        except OSError as error:
            raise UsageError(
                "PBS_NODEFILE",
                received=path,
                accepted="a file that lists the hosts",
                remedy=f"Unset it, or pass the cluster flags: {error.strerror}.",
            ) from None

    def rank(self) -> int:
        return self.number("PBS_VNODENUM")

    def job(self) -> str:
        return self.environ["PBS_JOBID"].partition(".")[0]
