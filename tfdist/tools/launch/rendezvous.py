"""The rendezvous that a launcher serves to the ranks of this machine.

    with serve(table.row("horovod"), 2, 4003, token):
        ...    # start the ranks with rendezvous_environment(table.row("horovod"), 2, rank, 4003)

With it, a script that calls `hvd.init` itself joins the job without `horovodrun`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tfdist.config.strategies import table
from tfdist.errors import UsageError

#: The address of this machine's tasks.
HOST = "127.0.0.1"


def rendezvous_environment(
    row: table.StrategySpec, ranks: int, rank: int, port: int
) -> dict[str, str]:
    """The variables with which a rank of this machine joins the rendezvous.

    Args:
      row: the strategy.
      ranks: the number of ranks, all of this machine.
      rank: the rank.
      port: the port of the rendezvous.

    Returns:
      The variables; none if the strategy has no rendezvous.
    """
    if row.rendezvous is None:
        return {}
    module = importlib.import_module(row.rendezvous)
    environment: dict[str, str] = module.environment_of([HOST] * ranks, rank, HOST, port)
    return environment


@contextmanager
def serve(row: table.StrategySpec, ranks: int, port: int, token: str) -> Iterator[None]:
    """Serves the rendezvous on loopback while the block runs, if the strategy has one.

    Args:
      row: the strategy.
      ranks: the number of ranks, all of this machine.
      port: the port.
      token: the job's token.

    Raises:
      UsageError: the strategy's engine is not installed.
    """
    if row.rendezvous is None:
        yield
        return
    with serve_hosts(row, [HOST] * ranks, HOST, port, token):
        yield


@contextmanager
def serve_hosts(
    row: table.StrategySpec, hosts: Sequence[str], host: str, port: int, token: str
) -> Iterator[None]:
    """Serves the rendezvous of a strategy that has one.

    Args:
      row: the strategy.
      hosts: the host of each rank.
      host: the address to listen on.
      port: the port.
      token: the job's token.

    Raises:
      UsageError: the strategy's engine is not installed, or the port cannot be bound.
    """
    assert row.rendezvous is not None
    try:
        with importlib.import_module(row.rendezvous).serve_hosts(hosts, host, port, token):
            yield
    except ModuleNotFoundError as error:
        raise UsageError(
            "--strategy",
            received=row.name,
            accepted=f"a strategy whose engine is installed ({error})",
            remedy="Build it with tfdist horovod build.",
        ) from None
