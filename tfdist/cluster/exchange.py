"""Finds the hosts of all ranks if the launcher of a job does not tell them.

    exchange(0, 2, "prterun-17@1", None)     # Met(hosts=("10.0.0.1", "10.0.0.2"), job="3f2a…")

With mpi4py it is one allgather. Without it, each rank writes a file to a directory that all ranks
share, `TFDIST_RENDEZVOUS_DIR`.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.cluster.interfaces import interfaces
from tfdist.errors import UsageError
from tfdist.process.paths import local_path

DIRECTORY_VARIABLE = "TFDIST_RENDEZVOUS_DIR"

_POLL_SECONDS = 0.1
_TIMEOUT_SECONDS = 300.0


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
def exchange(rank: int, size: int, job: str, shared: str | None) -> Met:
    """Exchanges the addresses of the ranks.

    Args:
      rank: the rank of this process.
      size: the number of ranks.
      job: the launcher's name of the job; empty if it has none.
      shared: a directory that all ranks share, for files if mpi4py is not installed.

    Raises:
      UsageError: mpi4py is not installed, and there is no directory for files.
      TimeoutError: not all ranks have written their files in time.
    """
    own = {"job": secrets.token_hex(8), "networks": networks()}
    try:
        from mpi4py import MPI
    except ImportError:
        found = _by_files(own, rank, size, job, shared)
    else:
        found = MPI.COMM_WORLD.allgather(own)
        # A process that ends without it ends the job.
        MPI.Finalize()
    return Met(in_one_network([each["networks"] for each in found]), str(found[0]["job"]))


def networks() -> dict[str, str]:
    """The IPv4 networks of this machine, except loopback, and its address in each."""
    found: dict[str, str] = {}
    for interface in interfaces().values():
        if not interface.is_loopback:
            found.setdefault(str(interface.network), str(interface.ip))
    return found


def in_one_network(found: Sequence[dict[str, str]]) -> tuple[str, ...]:
    """An address of each rank."""
    if all(each == found[0] for each in found):
        return ("127.0.0.1",) * len(found)
    hosts = len({tuple(sorted(each.items())) for each in found})
    for name in found[0]:
        addresses = [each[name] for each in found if name in each]
        # A bridge of containers has the same address on every host.
        if len(addresses) == len(found) and len({*addresses}) == hosts:
            return tuple(addresses)
    return tuple(next(iter(each.values()), "127.0.0.1") for each in found)


def _by_files(
    own: dict[str, Any], rank: int, size: int, job: str, shared: str | None
) -> list[dict[str, Any]]:
    if not shared or not job:
        raise UsageError(
            DIRECTORY_VARIABLE,
            received=shared,
            accepted="a directory that all ranks share, if mpi4py is not installed"
            + ("" if job else "; this launcher does not name its job, so mpi4py is needed"),
            remedy="Install tfdist[mpi], or set the variable with mpirun -x.",
        )
    name = re.sub(r"[^A-Za-z0-9.-]", "-", job)
    directory = local_path(DIRECTORY_VARIABLE, shared) / f"tfdist-{name}"
    directory.mkdir(parents=True, exist_ok=True)
    written = directory / f"{rank}.new"
    written.write_text(json.dumps(own))
    written.replace(directory / f"{rank}.json")
    files = [directory / f"{other}.json" for other in range(size)]
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while missing := [file.stem for file in files if not file.exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"waited {_TIMEOUT_SECONDS:.0f} s for the files of ranks {', '.join(missing)} "
                f"in {directory}"
            )
        time.sleep(_POLL_SECONDS)
    return [json.loads(file.read_text()) for file in files]
