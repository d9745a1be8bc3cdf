"""`Cluster` and `Task`: the tasks of a job and their addresses, with checks and output formats.

    cluster = Cluster(worker=("10.0.0.1:2222", "10.0.0.2:2222"), ps=("10.0.0.3:2222",))
    task = Task("worker", 1)
    cluster.check(task)
    cluster.tf_config(task)   # the TF_CONFIG of worker 1
    cluster.flags(task)       # ['--job_name=worker', '--task_index=1', '--ps_hosts=…', …]

Worker 0 is the chief of a job without a task of type chief, as in TensorFlow. An evaluator is a
task, but not part of the cluster.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

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
      index: the index among the tasks of this type, from 0.
    """

    type: str
    index: int

    def __post_init__(self) -> None:
        if self.type not in TASK_TYPES:
            raise UsageError(
                "task.type",
                received=self.type,
                accepted=", ".join(TASK_TYPES),
                remedy="Choose one of these types.",
            )
        if isinstance(self.index, bool) or not isinstance(self.index, int) or self.index < 0:
            raise UsageError(
                "task.index",
                received=self.index,
                accepted="an integer of at least 0",
                remedy="Number the tasks of each type from 0.",
            )

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


@dataclass(frozen=True)
class Cluster:
    """The addresses of a job's tasks, as `host:port`; empty for a single process.

    Raises:
      UsageError: an address is invalid (it has no port, a scheme, or a port outside 1..65535) or
        appears twice; or there is more than one chief, or ps without a chief or worker.
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
                    remedy="Write a list, even for one address.",
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
                        remedy=f"Give each task its own port: {known} has the same address.",
                    )
        if len(self.chief) > 1:
            raise UsageError(
                "cluster.chief",
                received=list(self.chief),
                accepted="one address",
                remedy="Make the others workers, because a job has one chief.",
            )
        if self.ps and not (self.chief or self.worker):
            raise UsageError(
                "cluster.worker",
                received=[],
                accepted="at least one address in a cluster with ps",
                remedy="Add a worker, because parameter servers do not train.",
            )

    def __bool__(self) -> bool:
        return bool(self.chief or self.worker)

    def __str__(self) -> str:
        jobs = [f"{len(hosts)} {name}" for name, hosts in self.jobs().items()]
        return " + ".join(jobs) or "this process alone"

    def jobs(self) -> dict[str, list[str]]:
        """The addresses by task type, as `tf.train.ClusterSpec` takes them; omits empty types."""
        named = ((job.name, list(getattr(self, job.name))) for job in fields(self))
        return {name: hosts for name, hosts in named if hosts}

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits; equal for equal clusters."""
        return hashlib.sha256(json.dumps(self.jobs()).encode()).hexdigest()[:32]

    @property
    def chief_task(self) -> Task:
        """The chief; worker 0 if there is no task of type chief."""
        return Task("chief", 0) if self.chief else Task("worker", 0)

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """The chief and the workers, in this order: the members of an all-reduce."""
        return tuple(
            Task(name, index)
            for name in ("chief", "worker")
            for index in range(len(getattr(self, name)))
        )

    def tasks(self) -> tuple[Task, ...]:
        """All tasks of the cluster, training tasks first."""
        return self.training_tasks + tuple(Task("ps", index) for index in range(len(self.ps)))

    def local_rank_of(self, task: Task, among: Sequence[Task]) -> tuple[int, int]:
        """The local rank of `task` on its host, and the number of tasks in `among` on that host."""
        hosts = [self.address(other).rpartition(":")[0] for other in among]
        index = among.index(task)
        return hosts[:index].count(hosts[index]), hosts.count(hosts[index])

    def address(self, task: Task) -> str:
        """The `host:port` of a task of this cluster."""
        addresses: tuple[str, ...] = getattr(self, task.type)
        return addresses[task.index]

    def check(self, task: Task) -> None:
        """Checks that `task` belongs to this cluster; an evaluator belongs to any.

        Raises:
          UsageError: it does not.
        """
        if task.type == "evaluator":
            if task.index:
                raise UsageError(
                    "task.index",
                    received=task.index,
                    accepted="0",
                    remedy="Start only one evaluator.",
                )
            return
        count = len(getattr(self, task.type))
        if not count:
            raise UsageError(
                "task.type",
                received=task.type,
                accepted=", ".join([*self.jobs(), "evaluator"]),
                remedy=f"Add the addresses of {task.type!r} to the cluster, or choose another "
                "type.",
            )
        if task.index >= count:
            raise UsageError(
                "task.index",
                received=task.index,
                accepted=f"0 to {count - 1} ({task.type} has {count} addresses)",
                remedy="Correct the index, or add the missing address to the cluster.",
            )

    def tf_config(self, task: Task, *, older: bool = False) -> str:
        """The TF_CONFIG of `task`, as JSON with sorted keys.

        Args:
          task: the task.
          older: whether to use the older dialect, which calls the chief `master`.
        """
        names = {"chief": "master"} if older else {}
        jobs = {names.get(name, name): hosts for name, hosts in self.jobs().items()}
        own = {"type": names.get(task.type, task.type), "index": task.index}
        return json.dumps({"cluster": jobs, "task": own}, sort_keys=True)

    def flags(self, task: Task) -> list[str]:
        """The flags that are equivalent to `tf_config`."""
        hosts = [f"--{name}_hosts={','.join(hosts)}" for name, hosts in self.jobs().items()]
        return [f"--job_name={task.type}", f"--task_index={task.index}", *hosts]


def host_and_port(address: str) -> tuple[str, int]:
    """Splits a valid `host:port`, and removes the brackets of an IPv6 host."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _check_address(place: str, address: object) -> None:
    accepted = "host:port with a port from 1 to 65535, e.g. 10.0.0.1:2222"
    if not isinstance(address, str):
        raise UsageError(place, received=address, accepted=accepted, remedy="Write it as a string.")
    if "://" in address:
        raise UsageError(place, received=address, accepted=accepted, remedy="Remove the scheme.")
    host, separator, port = address.rpartition(":")
    if not separator:
        raise UsageError(place, received=address, accepted=accepted, remedy="Add the task's port.")
    if not _HOST.fullmatch(host):
        remedy = "Put an IPv6 host in brackets." if ":" in host else "Correct the host name."
        raise UsageError(place, received=address, accepted=accepted, remedy=remedy)
    if not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        raise UsageError(place, received=address, accepted=accepted, remedy="Correct the port.")
