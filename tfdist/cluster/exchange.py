"""Finds the hosts of all ranks if the launcher of a job does not tell them.

exchange()     # Met(hosts=("10.0.0.1", "10.0.0.2"), job="3f2a…")
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist.cluster.interfaces import interfaces
from tfdist.errors import UsageError


@dataclass(frozen=True)
class Met:
    """The result of an exchange, equal in all ranks.

    Attributes:
      hosts: an address of each rank's host, all in one network if the hosts have one in common.
      job: a text that only this job has.
    """

    hosts: tuple[str, ...]
    job: str


# MPI can be initialized once in a process.
@functools.cache
def exchange() -> Met:
    """Exchanges the addresses of the ranks in one allgather of mpi4py.

    Raises:
      UsageError: mpi4py is not installed.
    """
    try:
        from mpi4py import MPI
    except ImportError:
        raise UsageError(
            "mpi4py",
            received=None,
            accepted="an installed package, because mpirun does not tell where the other ranks are",
            remedy="Install tfdist[mpi].",
        ) from None
    found = MPI.COMM_WORLD.allgather((secrets.token_hex(8), networks()))
    # A process that ends without it ends the job.
    MPI.Finalize()
    return Met(in_one_network([own for _, own in found]), found[0][0])


def networks() -> dict[str, str]:
    """The IPv4 networks of this machine, except loopback, and its address in each."""
    found: dict[str, str] = {}
    for interface in interfaces().values():
        if not interface.is_loopback:
            found.setdefault(str(interface.network), str(interface.ip))
    return found


def in_one_network(found: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """Selects an address for each rank, all in one network if the hosts share one."""
    if all(each == found[0] for each in found):
        return ("127.0.0.1",) * len(found)
    hosts = len({tuple(sorted(each.items())) for each in found})
    for name in found[0]:
        addresses = [each[name] for each in found if name in each]
        # A bridge of containers has the same address on every host.
        if len(addresses) == len(found) and len({*addresses}) == hosts:
            return tuple(addresses)
    return tuple(next(iter(each.values()), "127.0.0.1") for each in found)
