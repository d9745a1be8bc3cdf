"""Elastic jobs, which shrink and grow with the available machines.

    options = ElasticOptions(host_discovery_script="./hosts.sh", max_workers=8)
    members = ElasticMembership(job=job, options=options, ports=ports, environ=os.environ)
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
from dataclasses import dataclass
from typing import ClassVar

from tfdist.cluster import Cluster, host_and_port
from tfdist.config.launch_options import ElasticOptions
from tfdist.coordination.startup import addresses
from tfdist.errors import UsageError, log, refuse
from tfdist.process.cores import given_cores
from tfdist.tools.launch.host_discovery import FLAG, Host, HostDiscoveryScript
from tfdist.tools.launch.membership import Membership
from tfdist.tools.launch.rendezvous import Rendezvous
from tfdist.tools.launch.task_plan import Place, ScriptSpec, TaskSpec, task_plan


@dataclass(kw_only=True)
class ElasticMembership(Membership):
    """The tasks of an elastic job that run on this machine.

    Attributes:
      job: what runs.
      options: how it follows its hosts.
      ports: `max_workers + 1` free ports of this machine; the last one is for a rendezvous.
      environ: the launcher's environment.

    Raises:
      UsageError: the script is not a command.
    """

    can_change: ClassVar[bool] = True
    job: ScriptSpec
    options: ElasticOptions
    ports: Sequence[int]
    environ: Mapping[str, str]

    def __post_init__(self) -> None:
        assert self.options.host_discovery_script is not None
        self._script = HostDiscoveryScript(self.options.host_discovery_script)
        self._asked = self._script.ask()
        self._hosts: tuple[Host, ...] | None = None
        self._addresses: tuple[str, ...] = ()
        self._waits_since: float | None = None
        self._said: set[str] = set()

    def tasks(self) -> tuple[TaskSpec, ...]:
        """The tasks to start on this machine now; none while the job waits for hosts.

        Raises:
          UsageError: the script cannot be used, at its first time; or a port is missing.
          TimeoutError: there have not been enough hosts for too long.
        """
        self._hosts = self._read()
        self._addresses = self._addresses_on(self._hosts)
        cluster = Cluster(worker=self._addresses)
        mine = [task for task in cluster.tasks() if self._is_mine(cluster.address(task))]
        if len(self._addresses) < self.options.min_workers or not mine:
            self._wait(bool(mine))
            return ()
        if len(mine) < len(self._addresses) and self.options.port is None:
            refuse(
                {"port": None},
                "the first port of each host's tasks, if there are several machines",
                f"Choose a port that is free on all of {listed(self._hosts)}, or pass this "
                "machine's name with --host.",
            )
        self._waits_since = None
        is_alone = len(mine) == len(self._addresses)
        rendezvous = Rendezvous.here(self.job.row, len(mine), self.ports[-1])
        self.rendezvous = rendezvous if is_alone else None
        workers = "1 worker" if len(self._addresses) == 1 else f"{len(self._addresses)} workers"
        log(f"{workers} on {listed(self._hosts)}")
        place = Place(
            environ=self.environ,
            computing=mine,
            cores=given_cores(self.environ),
            rendezvous=self.rendezvous,
            is_whole_job=is_alone,
        )
        return tuple(task_plan(self.job, cluster, task, place) for task in mine)

    def change(self) -> str | None:
        """The reason why all tasks must restart, or None. Does not wait."""
        hosts = self._news()
        if hosts is None or self._addresses_on(hosts) == self._addresses:
            return None
        return f"the hosts are now {listed(hosts)}"

    def close(self) -> None:
        """Ends the script if it is running."""
        self._asked.close()

    def _read(self) -> tuple[Host, ...]:
        """The hosts, at a start of all tasks; the previous ones if the script fails."""
        self.close()
        self._asked = self._script.ask()
        try:
            return self._script.read()
        except UsageError as error:
            if self._hosts is None:
                raise
            self._say_once(f"warning: continuing with the previous hosts. {error}")
            return self._hosts

    def _news(self) -> tuple[Host, ...] | None:
        """The hosts; None while the script runs, or if it fails."""
        asked, self._asked = self._asked, self._script.ask()
        try:
            hosts = next(asked)
        except UsageError as error:
            self._say_once(f"warning: continuing with the previous hosts. {error}")
            return None
        if hosts is None:
            self._asked = asked
        else:
            self._said.clear()
        return hosts

    def _addresses_on(self, hosts: Sequence[Host]) -> tuple[str, ...]:
        places = [(host.name, index) for host in hosts for index in range(host.slots)]
        places = places[: self.options.max_workers]
        if self.options.port is None:
            return tuple(f"{name}:{self.ports[n]}" for n, (name, _) in enumerate(places))
        return tuple(f"{name}:{self.options.port + index}" for name, index in places)

    def _is_mine(self, address: str) -> bool:
        if self.options.host is not None:
            return address.rpartition(":")[0] == self.options.host
        return is_here(host_and_port(address)[0])

    def _wait(self, is_listed: bool) -> None:
        assert self._hosts is not None
        needed = f"--min_workers={self.options.min_workers}"
        if not is_listed:
            needed = f"{self.options.host or 'this machine'} to be listed"
        needed += f": {FLAG} lists {listed(self._hosts)}"
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        if now > self._waits_since + self.options.elastic_timeout:
            seconds = f"{self.options.elastic_timeout:g} s (--elastic_timeout)"
            raise TimeoutError(f"waited {seconds} for {needed}")
        self._say_once(f"waiting for {needed}")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log(text)


def is_here(host: str) -> bool:
    """Whether a host is this machine."""
    return any(map(addresses.is_of_this_machine, addresses.resolve(host)))


def listed(hosts: Sequence[Host]) -> str:
    """The hosts, for the log."""
    return ", ".join(map(str, hosts)) or "no host"
