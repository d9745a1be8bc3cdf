"""Elastic jobs, which shrink and grow with the available machines.

    options = Elasticity(script="./hosts.sh", max_workers=8)
    members = ElasticMembership(job, options, ports, cores=8, environ=os.environ)
    members.tasks()             # this machine's tasks, for the current hosts
    members.change()            # a sentence if the hosts have changed, else None

When the hosts change, all tasks save at one common step, exit, and restart in the new number, from
the same step. On several machines the same command runs on each machine and starts the tasks of its
own host. The startup barrier checks that the lists of all machines agree.

On one machine, the launcher also serves the strategy's rendezvous, for scripts that do not use
tfdist. Those that use it read TF_CONFIG.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

from tfdist.cluster import Cluster, Task, host_and_port
from tfdist.coordination.seal import token_of
from tfdist.coordination.startup import addresses
from tfdist.errors import UsageError, log
from tfdist.tools.launch.host_discovery import FLAG, Host, HostDiscoveryScript
from tfdist.tools.launch.job_spec import (
    JobSpec,
    TaskSpec,
    command_of,
    job_environment,
    port_of,
)
from tfdist.tools.launch.rendezvous import rendezvous_environment, serve
from tfdist.tools.launch.task_cores import cores_environment


@dataclass(frozen=True, kw_only=True)
class Elasticity:
    """How a job follows its hosts.

    Attributes:
      script: the program that lists the hosts; see `tfdist.tools.launch.host_discovery`.
      max_workers: the maximum number of tasks; more slots than that stay unused.
      min_workers: the job waits while there are fewer slots.
      timeout: the longest wait for slots, in seconds.
      host: the name under which the program lists this machine; None to compare the addresses.
      port: the first port of the tasks of each host; None for any port, on a single machine.

    Raises:
      UsageError: the numbers contradict each other.
    """

    script: str
    max_workers: int
    min_workers: int = 1
    timeout: float = 600.0
    host: str | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        if self.min_workers < 1:
            raise UsageError(
                "--min_workers",
                received=self.min_workers,
                accepted="a number from 1",
                remedy="Ask for at least one worker.",
            )
        if self.max_workers < self.min_workers:
            raise UsageError(
                "--max_workers",
                received=self.max_workers,
                accepted=f"a number from {self.min_workers}, which is --min_workers",
                remedy=f"Set it to the most workers that {FLAG} may lead to.",
            )
        if self.port is not None and not 1 <= self.port <= 65536 - self.max_workers:
            raise UsageError(
                "--port",
                received=self.port,
                accepted=f"a number from 1 to {65536 - self.max_workers}",
                remedy="Choose a lower port: each host uses one port per task, from this one on.",
            )


class ElasticMembership:
    """The tasks of an elastic job that run on this machine.

    Args:
      job: what runs; its number of workers is ignored.
      options: how it follows its hosts.
      ports: `max_workers + 1` free ports of this machine; the last one is for a rendezvous.
      cores: the cores that the tasks of this machine divide.
      environ: the launcher's environment.

    Raises:
      UsageError: the script is not a command.
    """

    can_change: ClassVar[bool] = True

    def __init__(
        self,
        job: JobSpec,
        options: Elasticity,
        ports: Sequence[int],
        *,
        cores: int,
        environ: Mapping[str, str],
    ) -> None:
        self._job = job
        self._options = options
        self._ports = ports
        self._cores = cores
        self._environ = environ
        self._script = HostDiscoveryScript(options.script)
        self._hosts: tuple[Host, ...] | None = None
        self._addresses: tuple[str, ...] = ()
        self._is_alone = False
        self._waits_since: float | None = None
        self._last_problem = ""

    def tasks(self) -> tuple[TaskSpec, ...]:
        """The tasks to start on this machine now; none while the job waits for hosts.

        Raises:
          UsageError: the script cannot be used, at its first time; or a port is missing.
          TimeoutError: there have not been enough hosts for too long.
        """
        try:
            self._hosts = self._script.read()
        except UsageError as error:
            if self._hosts is None:
                raise
            self._warn_once(error)
        assert self._hosts is not None
        self._addresses = self._addresses_on(self._hosts)
        cluster = Cluster(worker=self._addresses)
        mine = [task for task in cluster.tasks() if self._is_mine(cluster.address(task))]
        if len(self._addresses) < self._options.min_workers or not mine:
            self._wait(bool(mine))
            return ()
        if len(mine) < len(self._addresses) and self._options.port is None:
            raise UsageError(
                "--port",
                received=None,
                accepted="the first port of each host's tasks, if there are several machines",
                remedy=f"Choose a port that is free on all of {_listed(self._hosts)}, or pass this "
                "machine's name with --host.",
            )
        self._waits_since = None
        self._is_alone = len(mine) == len(self._addresses)
        workers = "1 worker" if len(self._addresses) == 1 else f"{len(self._addresses)} workers"
        log(f"{workers} on {_listed(self._hosts)}")
        return tuple(self._task(cluster, place, mine) for place in range(len(mine)))

    def change(self) -> str | None:
        """Why all tasks must restart; None if they need not. Does not wait."""
        try:
            hosts = self._script.answer()
            self._script.ask()
        except UsageError as error:
            self._warn_once(error)
            return None
        if hosts is None:
            return None
        self._last_problem = ""
        if self._addresses_on(hosts) == self._addresses:
            return None
        return f"the hosts are now {_listed(hosts)}"

    def service(self) -> AbstractContextManager[object]:
        if not self._is_alone:
            return nullcontext()
        return serve(self._job.row, len(self._addresses), self._ports[-1], token_of(self._environ))

    def close(self) -> None:
        """Ends the script if it is running."""
        self._script.end()

    def _addresses_on(self, hosts: Sequence[Host]) -> tuple[str, ...]:
        places = [(host.name, index) for host in hosts for index in range(host.slots)]
        places = places[: self._options.max_workers]
        if self._options.port is None:
            return tuple(f"{name}:{self._ports[n]}" for n, (name, _) in enumerate(places))
        return tuple(f"{name}:{self._options.port + index}" for name, index in places)

    def _is_mine(self, address: str) -> bool:
        if self._options.host is not None:
            return address.rpartition(":")[0] == self._options.host
        host, _ = host_and_port(address)
        return any(map(addresses.is_of_this_machine, addresses.resolve(host)))

    def _task(self, cluster: Cluster, place: int, mine: Sequence[Task]) -> TaskSpec:
        task = mine[place]
        job, ranks = self._job, len(self._addresses)
        rendezvous: dict[str, str] = {}
        if self._is_alone:
            rendezvous = rendezvous_environment(job.row, ranks, place, self._ports[-1])
        environment = {
            "TF_CONFIG": cluster.tf_config(task),
            **rendezvous,
            **cores_environment(task, mine, job.divides_cores, self._cores, self._environ),
            **job_environment(job, task),
        }
        command = command_of(job.python, job.script, job.args, module=job.module)
        return TaskSpec(
            str(task),
            command,
            environment,
            port=port_of(cluster, task),
            rendezvous_port=self._ports[-1] if rendezvous and ranks > 1 else None,
        )

    def _wait(self, is_listed: bool) -> None:
        assert self._hosts is not None
        needed = f"--min_workers={self._options.min_workers}"
        if not is_listed:
            needed = f"{self._options.host or 'this machine'} to be listed"
        listed = f"{FLAG} lists {_listed(self._hosts)}"
        if self._waits_since is None:
            self._waits_since = time.monotonic()
            log(f"waiting for {needed}: {listed}")
        elif time.monotonic() - self._waits_since > self._options.timeout:
            raise TimeoutError(
                f"waited {self._options.timeout:g} s (--elastic_timeout) for {needed}: {listed}"
            )

    def _warn_once(self, error: UsageError) -> None:
        if str(error) != self._last_problem:
            self._last_problem = str(error)
            log(f"warning: continuing with the previous hosts. {error}")


def _listed(hosts: Sequence[Host]) -> str:
    return ", ".join(map(str, hosts)) or "no host"
