"""A job of LSF whose tasks `jsrun` or `blaunch` started: `LSB_MCPU_HOSTS`."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.cluster.environments.base import RankEnvironment
from tfdist.cluster.numbers import MOST_TASKS, is_number


class LSF(RankEnvironment):
    """A task of the job. Under jsrun, ranks have the last slots; `bsub`'s script has the first."""

    name = "LSF"
    marks = ("LSB_JOBID", "LSB_MCPU_HOSTS")
    job_variable = "LSB_JOBID"

    def is_present(self) -> bool:
        return super().is_present() and bool(self._rank_variable)

    def hosts(self) -> Sequence[str]:
        words = self.environ["LSB_MCPU_HOSTS"].split()
        if not words or len(words) % 2 or not _are_slots(words[1::2]):
            raise self.error("LSB_MCPU_HOSTS", "hosts and their numbers of slots: a 2 b 2")
        hosts = [
            host
            for host, count in zip(words[::2], words[1::2], strict=True)
            for _ in range(int(count))
        ]
        if self._rank_variable == "JSM_NAMESPACE_RANK":
            # The first host may be that of the batch script, which has no rank.
            before = len(hosts) - self.number("JSM_NAMESPACE_SIZE")
            if before not in (0, int(words[1])):
                raise self.error("JSM_NAMESPACE_SIZE", "a rank in each slot of LSB_MCPU_HOSTS")
            hosts = hosts[before:]
        return hosts

    def rank(self) -> int:
        variable = self._rank_variable
        # blaunch counts from 1.
        return self.number(variable) - (variable == "LSF_PM_TASKID")

    @property
    def _rank_variable(self) -> str:
        names = ("JSM_NAMESPACE_RANK", "LSF_PM_TASKID")
        return next((name for name in names if self.environ.get(name)), "")


def _are_slots(words: Sequence[str]) -> bool:
    return all(map(is_number, words)) and sum(map(int, words)) <= MOST_TASKS
