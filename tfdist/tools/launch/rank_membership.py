"""Waits for the other ranks of a job whose launchers are on other machines.

    members = RankMembership(config, task, timeout=300.0, token=token)
    while not members.tasks():      # until all launchers are ready
        time.sleep(0.2)

A script that uses tfdist starts Horovod's rendezvous itself. For one that does not, the launcher of
rank 0 serves it on the address of that rank.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from tfdist.cluster.config import ClusterConfig
from tfdist.config.strategies import table
from tfdist.coordination.stores.kv_store import RendezvousStore
from tfdist.errors import log
from tfdist.tools.launch.membership import Membership
from tfdist.tools.launch.rendezvous import Rendezvous
from tfdist.tools.launch.task_plan import TaskSpec


class RankMembership(Membership):
    """The `Membership` of one rank; all ranks start together.

    Horovod gives the ranks only seconds to find each other. So the launcher of rank 0 starts its
    rank when all launchers have said that they are ready, in the store of the rendezvous.

    Args:
      config: the cluster and the rank's task.
      task: the planned task; see `own_place`.
      timeout: how long a launcher waits for the others, in seconds.
      token: the job's token.
    """

    def __init__(self, config: ClusterConfig, task: TaskSpec, timeout: float, token: str) -> None:
        self._task = task
        self._row = table.row("horovod")
        self._timeout = timeout
        self._names = [str(trainer) for trainer in config.cluster.training_tasks]
        self._meet = Rendezvous.of(config.cluster)
        self._token = token
        self._store = RendezvousStore(self._meet.host, self._meet.port, token)
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

    def close(self) -> None:
        """Ends the rendezvous."""
        self._server.close()

    @property
    def is_first(self) -> bool:
        """Whether this is the rank whose launcher serves the rendezvous."""
        return self._task.name == self._names[0]

    def _serve(self) -> None:
        self._server.close()
        self._server.enter_context(self._meet.serve(self._row, self._token))
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
