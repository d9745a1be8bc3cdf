"""`JobSpec`: a job as data, before anything is started.

    job = JobSpec(python=sys.executable, script="train.py", counts=TaskCounts(worker=2))
    for task in task_specs(job, ports=(4001, 4002), cores=8, environ=os.environ):
        print(task.name, task.shell())

Ports, cores and the launcher's environment are arguments. A launcher starts the planned tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tfdist.cluster import Cluster, task_types
from tfdist.cluster.task_counts import TaskCounts
from tfdist.cluster.task_types import WORKER
from tfdist.config.flags import AUTO, JobFlags
from tfdist.config.launch_options import FLAGS, HOROVODRUN, OLDER, RANKED, TF_CONFIG
from tfdist.config.strategies import table
from tfdist.errors import UsageError, refuse
from tfdist.tools.launch.rendezvous import HOST, Rendezvous
from tfdist.tools.launch.task_plan import (
    Place,
    ScriptSpec,
    TaskSpec,
    task_plan,
)


@dataclass(frozen=True, kw_only=True)
class JobSpec(ScriptSpec):
    """A training job: what runs, under which strategy, in how many tasks.

    Attributes:
      strategy: a name in the strategy table; `auto` chooses one by the number of tasks.
      counts: the numbers of tasks. Under `parameter_server` a chief coordinates the workers;
        elsewhere it is one more task that trains.

    Raises:
      UsageError: the strategy cannot use these tasks; the error names the flag.
    """

    counts: TaskCounts = field(default_factory=lambda: TaskCounts(worker=1))

    def __post_init__(self) -> None:
        for kind in (task_types.row(WORKER), *self.counts.kinds()):
            if (number := self.counts[kind.name]) < 1:
                refuse({kind.flag: number}, "a number from 1", "Correct it, or leave it out.")
        # The addresses do not matter.
        cluster = self.cluster(range(1, 1 + self.counts.in_cluster))
        if self.strategy == AUTO:
            name = table.choose(cluster, "default", self.flags.get("num_gpus"))
            object.__setattr__(self, "strategy", name)
            object.__setattr__(self, "is_auto", True)
        check_job(self, cluster, "default")

    def rendezvous(self, ports: Sequence[int]) -> Rendezvous | None:
        """The rendezvous of the training tasks, at the last port; None if the strategy has none."""
        return Rendezvous.here(self.row, self.counts.training, ports[-1])

    @property
    def num_ports(self) -> int:
        """The number of ports: one per task of the cluster, and one for a rendezvous."""
        return self.counts.in_cluster + (self.row.rendezvous is not None)

    def cluster(self, ports: Iterable[int]) -> Cluster:
        """The cluster on these ports of this machine: the chief first, then workers, then ps."""
        return self.counts.cluster(f"{HOST}:{port}" for port in ports)


def task_specs(
    job: JobSpec, *, ports: Sequence[int], cores: int, environ: Mapping[str, str]
) -> tuple[TaskSpec, ...]:
    """Plans every task of a job on this machine; the chief comes first.

    Args:
      job: what to run.
      ports: `job.num_ports` ports of this machine.
      cores: the cores that the training tasks divide.
      environ: the launcher's environment.
    """
    cluster = job.cluster(ports)
    place = Place(
        environ=environ,
        computing=job.row.compute_tasks(cluster),
        cores=cores,
        reads_cluster=job.row.reads_cluster
        or job.counts.in_cluster > job.counts.training
        or job.cluster_as in RANKED,
        rendezvous=job.rendezvous(ports),
        is_whole_job=True,
    )
    return tuple(task_plan(job, cluster, task, place) for task in job.counts.tasks())


def check_job(job: ScriptSpec, cluster: Cluster, source: str) -> None:
    """Makes the checks of each starting task, and checks the form in which it gets the cluster.

    Args:
      job: what the tasks run.
      cluster: the job's tasks.
      source: what describes them.

    Raises:
      UsageError: the strategy cannot use these tasks, a flag, or this form of the cluster.
    """
    row, job_flags = job.row, JobFlags.of(**job.flags)
    table.check_cluster(row, cluster, source)
    row.check_heartbeat(job_flags.heartbeat_timeout)
    table.check_flags(row, job_flags.of_strategy, job_flags.num_gpus, cluster)
    accepted = [TF_CONFIG]
    if row.reads_cluster:
        accepted += [OLDER, FLAGS] if cluster.chief else [FLAGS]
    if row.rendezvous:
        accepted += [HOROVODRUN]
    if cluster.training_tasks == cluster.tasks():
        accepted += RANKED
    if job.cluster_as not in accepted:
        received = f"{job.cluster_as} with --strategy={row.name} and {cluster}"
        raise UsageError.choice("--cluster_as", received, accepted)
