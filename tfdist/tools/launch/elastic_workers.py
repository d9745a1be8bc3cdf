"""Elastic jobs with parameter servers, whose workers come and go while the others train.

    members = ElasticWorkers(job=job, options=options, ports=ports, environ=os.environ)
    members.tasks()             # all that there can be, the chief first
    members.is_there(task)      # whether the hosts have a slot for it
    members.moves()             # the workers that come, and those that leave

The slots of the hosts are those of this machine. `--min_workers` is also a flag of the script: the
training begins with as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from tfdist.cluster.task_types import WORKER
from tfdist.errors import UsageError, log
from tfdist.process.cores import given_cores
from tfdist.tools.launch.elastic_job import ElasticMembership, is_here, listed
from tfdist.tools.launch.host_discovery import FLAG, Host
from tfdist.tools.launch.job_spec import JobSpec
from tfdist.tools.launch.task_plan import Place, TaskSpec, task_plan


@dataclass(kw_only=True)
class ElasticWorkers(ElasticMembership):
    """The tasks of an elastic job with parameter servers.

    Attributes:
      job: what runs, with `max_workers` workers.
    """

    can_change: ClassVar[bool] = False
    job: JobSpec
    _workers: list[TaskSpec] = field(default_factory=list)
    _there: int = 0

    def tasks(self) -> tuple[TaskSpec, ...]:
        self._hosts = self._read()
        self._there = self._slots(self._hosts)
        if self._there < self.options.min_workers:
            self._wait(True)
            return ()
        self._waits_since = None
        cluster = self.job.cluster(self.ports)
        row = self.job.row
        place = Place(
            environ=self.environ,
            # All cores are for as many workers as there are; a share would be for `max_workers`.
            computing=row.compute_tasks(cluster)[: self.options.min_workers],
            cores=given_cores(self.environ),
            is_whole_job=True,
        )
        job = replace(self.job, divides_cores=False)
        tasks = tuple(task_plan(job, cluster, task, place) for task in job.counts.tasks())
        self._workers = [task for task in tasks if task.kind.trains and not task.kind.leads]
        log(f"{self._there} of {len(self._workers)} workers on {listed(self._hosts)}")
        return tasks

    def is_there(self, task: TaskSpec) -> bool:
        return task not in self._workers[self._there :]

    def moves(self) -> tuple[Sequence[TaskSpec], Sequence[TaskSpec]]:
        hosts = self._news()
        if hosts is None:
            return (), ()
        try:
            slots = self._slots(hosts)
        except UsageError as error:
            self._say_once(f"warning: continuing with the previous hosts. {error}")
            return (), ()
        before, self._there = self._there, max(slots, self.options.min_workers)
        come, leave = self._workers[before : self._there], self._workers[self._there : before]
        for tasks, do in ((come, "join"), (leave, "leave")):
            if tasks:
                names = ", ".join(task.name for task in tasks)
                log(f"the hosts are now {listed(hosts)}: {names} {do}")
        return come, leave

    def change(self) -> None:
        return None

    def _slots(self, hosts: Sequence[Host]) -> int:
        for host in hosts:
            if not is_here(host.name):
                raise UsageError(
                    FLAG,
                    received=listed(hosts),
                    accepted=f"this machine alone with --strategy={self.job.strategy}",
                    remedy="Start the tasks of other machines with TF_CONFIG or the flags of the "
                    "cluster; with --min_workers their workers join and leave, too.",
                )
        return min(sum(host.slots for host in hosts), self.job.counts[WORKER])
