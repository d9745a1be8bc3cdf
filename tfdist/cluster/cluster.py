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
from dataclasses import dataclass
from functools import cached_property

from tfdist.cluster import task_types
from tfdist.cluster.task_types import CHIEF, PS, WORKER, TaskType
from tfdist.errors import UsageError

_HOST = re.compile(
    r"\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]|[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?"
)


@dataclass(frozen=True)
class Task:
    """One process of a job.

    Attributes:
      type: the name of a row of `tfdist.cluster.task_types`, such as `worker`.
      index: the index among the tasks of this type, from 0.
    """

    type: str
    index: int

    def __post_init__(self) -> None:
        if self.type not in [*task_types.rows()]:  # A JSON list has no hash.
            raise UsageError.choice("task.type", self.type, task_types.rows())
        if isinstance(self.index, bool) or not isinstance(self.index, int) or self.index < 0:
            raise UsageError(
                "task.index",
                received=self.index,
                accepted="an integer of at least 0",
                remedy="Number the tasks of each type from 0.",
            )

    @property
    def kind(self) -> TaskType:
        """The row of this task's type in the table of task types."""
        return task_types.row(self.type)

    @classmethod
    def named(cls, name: str) -> Task:
        """Parses a task's name, such as `worker:0`."""
        type, _, index = name.partition(":")
        return cls(type, int(index))

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


@dataclass(frozen=True, init=False)
class Cluster:
    """The addresses of a job's tasks, as `host:port`; empty for a single process.

    Raises:
      UsageError: an address is invalid (it has no port, a scheme, or a port outside 1..65535) or
        appears twice; or there is more than one chief, or ps without a chief or worker.
    """

    _addresses: tuple[tuple[str, tuple[str, ...]], ...]

    def __init__(self, **jobs: Sequence[str]) -> None:
        """Takes the addresses by type: `Cluster(worker=("10.0.0.1:2222",))`."""
        seen: dict[tuple[str, int], str] = {}
        for name, addresses in jobs.items():
            if not isinstance(addresses, (list, tuple)):
                raise UsageError(
                    f"cluster.{name}",
                    received=addresses,
                    accepted="a list of host:port",
                    remedy="Write a list, even for one address.",
                )
            for index, address in enumerate(addresses):
                place = f"cluster.{name}[{index}]"
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
            most = task_types.row(name).most
            if most is not None and len(addresses) > most:
                raise UsageError(
                    f"cluster.{name}",
                    received=list(addresses),
                    accepted="one address" if most == 1 else f"at most {most} addresses",
                    remedy=f"Make the others workers, because a job has one {name}.",
                )
        # In the order of the table, and without types of which there is no task.
        named = ((name, tuple(jobs.get(name, ()))) for name in task_types.in_cluster())
        object.__setattr__(self, "_addresses", tuple(item for item in named if item[1]))
        if self._addresses and not self:
            raise UsageError(
                "cluster.worker",
                received=[],
                accepted=f"at least one address in a cluster with {self._addresses[0][0]}",
                remedy="Add a worker, because these tasks do not train.",
            )

    @property
    def chief(self) -> tuple[str, ...]:
        """The chief's address; empty if worker 0 is the chief."""
        return self.of(CHIEF)

    @property
    def worker(self) -> tuple[str, ...]:
        """The workers' addresses."""
        return self.of(WORKER)

    @property
    def ps(self) -> tuple[str, ...]:
        """The parameter servers' addresses."""
        return self.of(PS)

    def of(self, type: str) -> tuple[str, ...]:
        """The addresses of the tasks of a type."""
        return dict(self._addresses).get(type, ())

    def __bool__(self) -> bool:
        return any(task_types.row(name).trains for name, _ in self._addresses)

    def __str__(self) -> str:
        jobs = [f"{len(hosts)} {name}" for name, hosts in self._addresses]
        return " + ".join(jobs) or "this process alone"

    def jobs(self, *, in_tensorflow: bool = False) -> dict[str, list[str]]:
        """The addresses by task type; omits empty types.

        Args:
          in_tensorflow: only the types of TensorFlow's cluster, as `tf.train.ClusterSpec` takes
            them.
        """
        return {
            name: list(hosts)
            for name, hosts in self._addresses
            if task_types.row(name).in_tensorflow or not in_tensorflow
        }

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits; equal for equal clusters."""
        return hashlib.sha256(json.dumps(self.jobs()).encode()).hexdigest()[:32]

    @property
    def chief_task(self) -> Task:
        """The chief; worker 0 if there is no task of type chief."""
        types = (name for name, _ in self._addresses if task_types.row(name).trains)
        return Task(next(types, WORKER), 0)

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """The chief and the workers, in this order: the members of an all-reduce."""
        return tuple(task for task in self.tasks() if task.kind.trains)

    def tasks(self) -> tuple[Task, ...]:
        """All tasks of the cluster, training tasks first."""
        return tuple(
            Task(name, index) for name, hosts in self._addresses for index in range(len(hosts))
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of all tasks, each once."""
        addresses = (self.address(task) for task in self.tasks())
        return tuple(dict.fromkeys(host_and_port(address)[0] for address in addresses))

    def local_rank_of(self, task: Task, among: Sequence[Task]) -> tuple[int, int]:
        """The local rank of `task` on its host, and the number of tasks in `among` on that host."""
        hosts = [self.address(other).rpartition(":")[0] for other in among]
        index = among.index(task)
        return hosts[:index].count(hosts[index]), hosts.count(hosts[index])

    def address(self, task: Task) -> str:
        """The `host:port` of a task of this cluster."""
        return self.of(task.type)[task.index]

    def check(self, task: Task) -> None:
        """Checks that `task` is in this cluster, or of a type without addresses, such as evaluator.

        Raises:
          UsageError: it is not.
        """
        is_member = task.kind.in_cluster
        count = len(self.of(task.type)) if is_member else task.kind.most
        if count == 0:
            rows = task_types.rows().values()
            names = [row.name for row in rows if not row.in_cluster or self.of(row.name)]
            raise UsageError.choice("task.type", task.type, names)
        if count is not None and task.index >= count:
            address = ", or add the missing address to the cluster" if is_member else ""
            raise UsageError(
                "task.index",
                received=task.index,
                accepted=f"0 to {count - 1} (the job has {count} {task.type})",
                remedy=f"Correct the index{address}.",
            )

    def tf_config(self, task: Task, *, older: bool = False) -> str:
        """The TF_CONFIG of `task`, as JSON with sorted keys.

        Args:
          task: the task.
          older: whether to use the older dialect, which calls the chief `master`.
        """
        names = {name: old for old, name in task_types.older_names().items()} if older else {}
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
    host, separator, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not isinstance(address, str):
        remedy = "Write it as a string."
    elif "://" in address:
        remedy = "Remove the scheme."
    elif not separator:
        remedy = "Add the task's port."
    elif not _HOST.fullmatch(host):
        remedy = "Put an IPv6 host in brackets." if ":" in host else "Correct the host name."
    elif not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
        remedy = "Correct the port."
    else:
        return
    raise UsageError(place, received=address, accepted=accepted, remedy=remedy)
