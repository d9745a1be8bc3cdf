"""A job of PBS whose tasks `pbsdsh` started: the file `PBS_NODEFILE` has a line for each slot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfdist.cluster.environments.base import RankEnvironment


class PBS(RankEnvironment):
    """A task of `pbsdsh`."""

    name = "PBS"
    order = 100
    marks = ("PBS_VNODENUM", "PBS_JOBID", "PBS_NODEFILE")

    def is_present(self) -> bool:
        # The first task of a job is its script.
        return super().is_present() and self.environ.get("PBS_TASKNUM") != "1"

    def hosts(self) -> Sequence[str]:
        try:
            return Path(self.environ["PBS_NODEFILE"]).read_text().split()
        except OSError as error:
            accepted = f"a file that lists the hosts ({error.strerror})"
            raise self.error("PBS_NODEFILE", accepted) from None

    def job(self) -> str:
        return self.environ["PBS_JOBID"].partition(".")[0]
