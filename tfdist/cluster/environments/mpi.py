"""`mpirun` of Open MPI 4 and 5, and of MPICH (Hydra).

Neither tells a rank where the others are. On several hosts the ranks exchange their addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from tfdist.cluster.environments.base import RankEnvironment
from tfdist.cluster.exchange import Met, exchange


class OpenMPI(RankEnvironment):
    """A rank of Open MPI."""

    name = "Open MPI"
    marks: ClassVar[tuple[str, ...]] = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")

    #: The number of ranks on this host.
    local_size: ClassVar[str] = "OMPI_COMM_WORLD_LOCAL_SIZE"

    def hosts(self) -> Sequence[str]:
        return self._met().hosts

    def job(self) -> str:
        return self._met().job

    def evidence(self) -> str:
        return f"{self.name}, rank {self.rank()}"

    def _met(self) -> Met:
        size = self.number(self.marks[1])
        job = self.environ.get("PMIX_NAMESPACE", "")
        if size == 1 or (job and self.environ.get(self.local_size) == str(size)):
            return Met(("127.0.0.1",) * size, job)
        return exchange()


class MPICH(OpenMPI):
    """A rank of MPICH, or of another MPI whose launcher is Hydra."""

    name = "MPICH"
    marks = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS")

    local_size = "MPI_LOCALNRANKS"
