"""Who is in a job and where: the cluster, this task, every check on them, and their renderings.

    cluster = Cluster(worker=("10.0.0.1:2222", "10.0.0.2:2222"), ps=("10.0.0.3:2222",))
    task = Task("worker", 1)
    cluster.check(task)
    cluster.tf_config(task)   # the TF_CONFIG of worker 1
    cluster.flags(task)       # ['--job_name=worker', '--task_index=1', '--ps_hosts=…', …]

A job without a chief is led by worker 0, as in TensorFlow. An evaluator is a task, never a member
of the cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tfdist.errors import UsageError

JOB_NAMES = ("chief", "worker", "ps")
TASK_TYPES = (*JOB_NAMES, "evaluator")

_HOST = re.compile(
    r"\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
)


@dataclass(frozen=True)
class Task:
    """One process of a job.

    Attributes:
      type: `chief`, `worker`, `ps` or `evaluator`.
      index: position within the job of that name, from 0.
    """

    type: str
    index: int

    def __post_init__(self) -> None:
        if self.type not in TASK_TYPES:
            raise UsageError(
                "task.type",
                received=self.type,
                accepted=", ".join(TASK_TYPES),
                remedy="Name the job that this process belongs to.",
            )
        if isinstance(self.index, bool) or not isinstance(self.index, int) or self.index < 0:
            raise UsageError(
                "task.index",
                received=self.index,
                accepted="a whole number from 0",
                remedy="Number the tasks of a job from 0.",
            )

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


@dataclass(frozen=True)
class Cluster:
    """The addresses of a job's tasks, `host:port` each; empty for a process by itself.

    Raises:
      UsageError: an address without a port, with a scheme or a port outside 1..65535, one that
        stands twice, more than one chief, or ps without anyone to work with.
    """

    chief: tuple[str, ...] = ()
    worker: tuple[str, ...] = ()
    ps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        seen: dict[tuple[str, int], str] = {}
        for job in fields(self):
            addresses = getattr(self, job.name)
            if not isinstance(addresses, (list, tuple)):
                raise UsageError(
                    f"cluster.{job.name}",
                    received=addresses,
                    accepted="a list of host:port",
                    remedy="Write a list, also for one address.",
                )
            object.__setattr__(self, job.name, tuple(addresses))
            for index, address in enumerate(addresses):
                place = f"cluster.{job.name}[{index}]"
                _check_address(place, address)
                host, port = host_and_port(address)
                known = seen.setdefault((host.lower(), port), place)
                if known != place:
                    raise UsageError(
                        place,
                        received=address,
                        accepted="an address that no other task has",
                        remedy=f"{known} has it already: give each task its own port.",
                    )
        if len(self.chief) > 1:
            raise UsageError(
                "cluster.chief",
                received=list(self.chief),
                accepted="one address",
                remedy="Make the others workers: a job has one chief.",
            )
        if self.ps and not (self.chief or self.worker):
            raise UsageError(
                "cluster.worker",
                received=[],
                accepted="at least one address where there are ps",
                remedy="Add a worker: parameter servers train nothing by themselves.",
            )

    def __bool__(self) -> bool:
        return bool(self.chief or self.worker)

    def __str__(self) -> str:
        jobs = [f"{len(hosts)} {name}" for name, hosts in self.jobs().items()]
        return " + ".join(jobs) or "this process alone"

    def jobs(self) -> dict[str, list[str]]:
        """The jobs that have tasks, as `tf.train.ClusterSpec` takes them."""
        named = ((job.name, list(getattr(self, job.name))) for job in fields(self))
        return {name: hosts for name, hosts in named if hosts}

    @property
    def chief_task(self) -> Task:
        """The chief, or worker 0 where no task is called chief."""
        return Task("chief", 0) if self.chief else Task("worker", 0)

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """Chief and workers, the chief first: the members of an all-reduce."""
        return tuple(
            Task(name, index)
            for name in ("chief", "worker")
            for index in range(len(getattr(self, name)))
        )

    def tasks(self) -> tuple[Task, ...]:
        """Every task of the cluster, trainers first."""
        return self.training_tasks + tuple(Task("ps", index) for index in range(len(self.ps)))

    def local_rank_of(self, task: Task, among: Sequence[Task]) -> tuple[int, int]:
        """Which of the tasks `among` whom it is `task` is on its host, and how many these are."""
        hosts = [self.address(other).rpartition(":")[0] for other in among]
        index = among.index(task)
        return hosts[:index].count(hosts[index]), hosts.count(hosts[index])

    def address(self, task: Task) -> str:
        """The `host:port` of a task of this cluster."""
        addresses: tuple[str, ...] = getattr(self, task.type)
        return addresses[task.index]

    def check(self, task: Task) -> None:
        """Raises UsageError unless `task` belongs to this cluster (an evaluator: to any)."""
        if task.type == "evaluator":
            if task.index:
                raise UsageError(
                    "task.index",
                    received=task.index,
                    accepted="0",
                    remedy="Start one evaluator: a job has no use for more.",
                )
            return
        count = len(getattr(self, task.type))
        if not count:
            raise UsageError(
                "task.type",
                received=task.type,
                accepted=", ".join([*self.jobs(), "evaluator"]),
                remedy=f"Add the addresses of {task.type!r} to the cluster, or name another job.",
            )
        if task.index >= count:
            raise UsageError(
                "task.index",
                received=task.index,
                accepted=f"0 to {count - 1} ({task.type} has {count} addresses)",
                remedy="Correct the index, or add the missing address to the cluster.",
            )

    def tf_config(self, task: Task) -> str:
        """TF_CONFIG of `task`, as JSON with its keys in a fixed order."""
        return json.dumps(
            {"cluster": self.jobs(), "task": {"type": task.type, "index": task.index}},
            sort_keys=True,
        )

    def flags(self, task: Task) -> list[str]:
        """The flags that tell a script the same as `tf_config`."""
        hosts = [f"--{name}_hosts={','.join(hosts)}" for name, hosts in self.jobs().items()]
        return [f"--job_name={task.type}", f"--task_index={task.index}", *hosts]


def host_and_port(address: str) -> tuple[str, int]:
    """Splits a checked `host:port`; the brackets of an IPv6 host are taken off."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _check_address(place: str, address: object) -> None:
    accepted = "host:port with a port from 1 to 65535, e.g. 10.0.0.1:2222"
    if not isinstance(address, str):
        raise UsageError(place, received=address, accepted=accepted, remedy="Write it as a string.")
    if "://" in address:
        raise UsageError(
            place, received=address, accepted=accepted, remedy="Take the scheme off the address."
        )
    host, separator, port = address.rpartition(":")
    if not separator:
        raise UsageError(
            place, received=address, accepted=accepted, remedy="Add the port that the task uses."
        )
    if not _HOST.fullmatch(host):
        remedy = "Put an IPv6 host in brackets." if ":" in host else "Correct the host's name."
        raise UsageError(place, received=address, accepted=accepted, remedy=remedy)
    if not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise UsageError(place, received=address, accepted=accepted, remedy="Correct the port.")
