"""The base classes of engines: they read the cluster and this task from the environment.

    class Example(RankEnvironment):
        name, marks = "Example", ("EXAMPLE_RANK",)

        job_variable = "EXAMPLE_JOB"            # a number or a name; the ports follow from it

        def hosts(self) -> list[str]: ...       # of each rank
        def evidence(self) -> str: ...          # for the first line of the log

`tfdist.cluster.environments.TABLE` lists the classes. Environments are functions of the environment
variables: they start nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tfdist.cluster.cluster import Cluster
from tfdist.cluster.config import ClusterConfig, ClusterFlags
from tfdist.cluster.numbers import is_number
from tfdist.cluster.ports import ports_of
from tfdist.cluster.task_counts import TaskCounts, ranks
from tfdist.errors import UsageError


class Environment(ABC):
    """The place of this process in a job, as one engine describes it.

    Args:
      environ: the environment variables.
      flags: the flags that describe the cluster.
      counts: how many ranks are ps and the like, where an engine numbers the tasks.

    Attributes:
      name: the engine, as the log names it.
      marks: the variables that show the engine to a task; a launcher within the engine removes them
        from its own tasks.
    """

    name: ClassVar[str]
    marks: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, environ: Mapping[str, str], flags: ClusterFlags, counts: TaskCounts | None = None
    ) -> None:
        self.environ = environ
        self.flags = flags
        self.counts = counts or TaskCounts()

    def is_present(self) -> bool:
        """Whether this engine has started the process."""
        return all(self.environ.get(name) for name in self.marks)

    @abstractmethod
    def config(self) -> ClusterConfig | None:
        """The cluster and this task; None if the engine has not started this process.

        Raises:
          UsageError: a variable or a flag is invalid.
        """

    def number(self, name: str) -> int:
        """The number in a variable.

        Raises:
          UsageError: it is not a number from 0.
        """
        text = self.environ.get(name, "").strip()
        if not is_number(text):
            raise self.error(name, "a number from 0")
        return int(text)

    def error(self, name: str, accepted: str) -> UsageError:
        """The error for a variable with a value that this engine never sets."""
        received = self.environ.get(name, "")[:80]
        return UsageError(name, received=received, accepted=accepted, remedy=self.remedy)

    @property
    def remedy(self) -> str:
        """What the user should do about a variable with an invalid value."""
        return f"Unset the variables of {self.name}, or pass the cluster flags."


class RankEnvironment(Environment):
    """An engine that numbers the processes of a job from 0; the first of its marks is the rank.

    Attributes:
      job_variable: the variable that distinguishes the job from others on the same machines.
    """

    job_variable: ClassVar[str] = ""

    @abstractmethod
    def hosts(self) -> Sequence[str]:
        """The host of each rank."""

    def rank(self) -> int:
        """The rank of this process."""
        return self.number(self.marks[0])

    def job(self) -> str:
        """What distinguishes the job from others on the same machines."""
        return self.environ.get(self.job_variable, "")

    def first_port(self) -> int | None:
        """The first port of each host, if the engine reserves ports."""
        return None

    def addresses(self) -> Sequence[str]:
        """The address of each rank."""
        hosts = self.hosts()
        ports = ports_of(hosts, self.job(), self.first_port())
        return [
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            for host, port in zip(hosts, ports, strict=True)
        ]

    def evidence(self) -> str:
        """What was found, for the first line of the log."""
        return self.name

    def config(self) -> ClusterConfig | None:
        if not self.is_present():
            return None
        rank, addresses = self.rank(), self.addresses()
        tasks = ranks(len(addresses), self.counts)
        if rank >= len(tasks):
            raise self.error(self.marks[0], f"a rank below {len(tasks)}, the number of tasks")
        jobs: dict[str, list[str]] = {}
        for task, address in zip(tasks, addresses, strict=True):
            if task.kind.in_cluster:
                jobs.setdefault(task.type, []).append(address)
        cluster = Cluster(**jobs) if len(tasks) > 1 else Cluster()
        return ClusterConfig(cluster, tasks[rank], self.name, evidence=self.evidence())
