"""Plans this machine's task of a job whose other tasks run on other machines.

    config = from_flags(flags)
    task = own_task_spec(config, ["python", "train.py"], "horovod", cluster_as="horovodrun")
    members = RankMembership(config, task, timeout=300.0, token=token)

A script that uses tfdist starts Horovod's rendezvous itself. For one that does not, the launcher of
rank 0 serves it on the address of that rank.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, ClassVar

from tfdist.cluster import host_and_port
from tfdist.cluster.config import ClusterConfig
from tfdist.config.strategies import table
from tfdist.coordination.shutdown import RESTARTABLE_VARIABLE
from tfdist.coordination.stores import horovod_rendezvous
from tfdist.coordination.stores.kv_store import RendezvousStore
from tfdist.errors import log
from tfdist.process.cores import ALL_CORES, CORES_VARIABLE
from tfdist.tools.launch.job_spec import OLDER, TaskSpec, passed_flags, port_of
from tfdist.tools.launch.rendezvous import serve_hosts


def own_task_spec(
    config: ClusterConfig,
    command: Sequence[str],
    strategy: str,
    *,
    flags: Mapping[str, Any] | None = None,
    cluster_as: str = "tf_config",
    divides_cores: bool = True,
    restarts: bool = True,
) -> TaskSpec:
    """Plans the task of this machine.

    Args:
      config: the cluster and the task, from flags or TF_CONFIG.
      command: the command that runs the script.
      strategy: `auto`, or a name in the strategy table.
      flags: as in `JobSpec`.
      cluster_as: as in `JobSpec`.
      divides_cores: whether it divides its machine's cores with the other tasks there.
      restarts: whether a launcher may start the task again.
    """
    environment = {"PYTHONUNBUFFERED": "1", **passed_flags(flags or {})}
    if restarts:
        environment[RESTARTABLE_VARIABLE] = "1"
    if not divides_cores:
        environment[CORES_VARIABLE] = ALL_CORES
    removed: tuple[str, ...] = ()
    port = port_of(config.cluster, config.task)
    rendezvous_port = None
    if cluster_as == "flags":
        command = (*command, *config.cluster.flags(config.task))
        removed = ("TF_CONFIG",)
    elif cluster_as == "horovodrun" and config.task.kind.in_cluster:
        hosts, host, rendezvous_port = _ranks(config)
        rank = config.cluster.training_tasks.index(config.task)
        environment |= horovod_rendezvous.environment_of(hosts, rank, host, rendezvous_port)
        removed, port = ("TF_CONFIG",), None
    elif config.source != "TF_CONFIG" or cluster_as == OLDER:
        environment["TF_CONFIG"] = config.cluster.tf_config(config.task, older=cluster_as == OLDER)
    if strategy != "auto":
        environment[table.STRATEGY_VARIABLE] = strategy
    return TaskSpec(
        str(config.task),
        tuple(command),
        environment,
        removed,
        port=port,
        rendezvous_port=rendezvous_port if len(config.cluster.training_tasks) > 1 else None,
    )


class RankMembership:
    """The `Membership` of one rank; all ranks start together.

    Horovod gives the ranks only seconds to find each other. So the launcher of rank 0 starts its
    rank when all launchers have said that they are ready, in the store of the rendezvous.

    Args:
      config: the cluster and the rank's task.
      task: the planned task; see `own_task_spec`.
      timeout: how long a launcher waits for the others, in seconds.
      token: the job's token.
    """

    can_change: ClassVar[bool] = False

    def __init__(self, config: ClusterConfig, task: TaskSpec, timeout: float, token: str) -> None:
        self._task = task
        self._row = table.row("horovod")
        self._timeout = timeout
        self._names = [str(trainer) for trainer in config.cluster.training_tasks]
        self._hosts, self._host, self._port = _ranks(config)
        self._token = token
        self._store = RendezvousStore(self._host, self._port, token)
        self._server = ExitStack()
        self._waits_since: float | None = None
        # Each start has a rendezvous of its own, because Horovod cannot join an old one.
        self._rendezvous: str | None = None

    def tasks(self) -> Sequence[TaskSpec]:
        begins = self._waits_since is None
        if self._waits_since is None:
            self._waits_since = time.monotonic()
            if self.is_first:
                self._serve()
        missing = self._missing()
        if not missing:
            self._waits_since = None
            return (self._task,)
        waits = time.monotonic() - self._waits_since
        if waits > self._timeout:
            raise TimeoutError(
                f"waited {self._timeout:g} s (--startup_timeout) for {', '.join(missing)}"
            )
        if begins:
            log(f"waiting for {', '.join(missing)}")
        return ()

    def change(self) -> None:
        return None

    def service(self) -> AbstractContextManager[object]:
        return nullcontext()

    def close(self) -> None:
        """Ends the rendezvous."""
        self._server.close()

    @property
    def is_first(self) -> bool:
        """Whether this is the rank whose launcher serves the rendezvous."""
        return self._task.name == self._names[0]

    def _serve(self) -> None:
        self._server.close()
        self._server.enter_context(
            serve_hosts(self._row, self._hosts, self._host, self._port, self._token)
        )
        self._rendezvous = secrets.token_hex(8)
        self._store.put("rendezvous", self._rendezvous)

    def _missing(self) -> list[str]:
        """The tasks whose launchers this one waits for."""
        if self.is_first:
            return [name for name in self._names[1:] if self._store.get(name, seconds=0) is None]
        found = None
        with suppress(OSError):
            found = self._store.get("rendezvous", seconds=0)
        if found in (None, self._rendezvous):
            return self._names[:1]
        self._rendezvous = found
        self._store.put(self._task.name, "ready")
        return []


def _ranks(config: ClusterConfig) -> tuple[list[str], str, int]:
    """The hosts of all ranks, and the address of rank 0."""
    addresses = [config.cluster.address(task) for task in config.cluster.training_tasks]
    hosts = [host_and_port(address)[0] for address in addresses]
    return hosts, *host_and_port(addresses[0])
