"""The rendezvous that a launcher serves to the ranks of a job.

    rendezvous = Rendezvous.here(table.row("horovod"), ranks=2, port=4003)
    with rendezvous.serve(token):
        ...    # start the ranks with rendezvous.environment(rank)

With it, a script that calls `hvd.init` itself joins the job without `horovodrun`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tfdist.cluster import Cluster, host_and_port
from tfdist.config.strategies import table
from tfdist.errors import refuse

#: The address of this machine's tasks.
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Rendezvous:
    """The place where the ranks of a job meet.

    Attributes:
      row: the strategy.
      hosts: the host of each rank.
      host: the address to listen on.
      port: the port.
    """

    row: table.StrategySpec
    hosts: Sequence[str]
    host: str
    port: int

    @classmethod
    def here(cls, row: table.StrategySpec, ranks: int, port: int) -> Rendezvous | None:
        """The rendezvous of ranks on this machine; None if the strategy has none."""
        return cls(row, [HOST] * ranks, HOST, port) if row.rendezvous else None

    @classmethod
    def of(cls, row: table.StrategySpec, cluster: Cluster) -> Rendezvous:
        """The rendezvous of the training tasks, at the address of the first one."""
        addresses = [host_and_port(cluster.address(task)) for task in cluster.training_tasks]
        return cls(row, [host for host, _ in addresses], *addresses[0])

    def environment(self, rank: int) -> dict[str, str]:
        """The variables with which a rank joins."""
        return dict(self._module().environment_of(self.hosts, rank, self.host, self.port))

    @contextmanager
    def serve(self, token: str) -> Iterator[None]:
        """Serves while the block runs.

        Args:
          token: the job's token.

        Raises:
          UsageError: the strategy's engine is not installed.
          OSError: the port cannot be bound.
        """
        try:
            with self._module().serve_hosts(self.hosts, self.host, self.port, token):
                yield
        except ModuleNotFoundError as error:
            accepted = f"a strategy whose engine is installed ({error})"
            refuse({"strategy": self.row.name}, accepted, "Build it with tfdist horovod build.")

    def _module(self) -> Any:
        assert self.row.rendezvous is not None
        return importlib.import_module(self.row.rendezvous)
