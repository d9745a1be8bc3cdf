"""A step of Slurm: `srun`.

A batch script without `srun`, and a shell of `salloc`, are one process. The ranks of a
heterogeneous step follow the order of its components; `SLURM_STEP_NODELIST` is sorted and does not.
See "srun" and "Heterogeneous Job Support" in Slurm's documentation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tfdist.cluster.environments.base import RankEnvironment
from tfdist.cluster.ports import first_of
from tfdist.cluster.slurm_layout import counts_of, distribution_of, nodes_of, ranks_of


class Slurm(RankEnvironment):
    """A task of a step."""

    name = "Slurm step"
    marks = ("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS")

    def hosts(self) -> Sequence[str]:
        return [host for component in self._components() for host in component]

    def rank(self) -> int:
        rank, hosts = self.number("SLURM_PROCID"), self.hosts()
        node, place = self.environ.get("SLURMD_NODENAME"), self.environ.get("SLURM_LOCALID")
        if rank < len(hosts):
            computed = (hosts[rank], str(hosts[:rank].count(hosts[rank])))
            if node and place and computed != (node, place):
                given, own = f"{place} of {node}", f"{computed[1]} of {computed[0]}"
                accepted = f"one by which task {rank}, which is {given}, is {own}; such as block"
                raise self.error("SLURM_DISTRIBUTION", accepted)
        return rank

    def job(self) -> str:
        # Steps of one job follow each other, and so do jobs.
        return str(8 * self.number("SLURM_JOB_ID") + self.number("SLURM_STEP_ID") % 8)

    def first_port(self) -> int | None:
        return first_of(self.environ.get("SLURM_STEP_RESV_PORTS", ""))

    def evidence(self) -> str:
        number = f"{self.environ.get('SLURM_JOB_ID')}.{self.environ.get('SLURM_STEP_ID')}"
        parts = len(self._components())
        layout = f"{parts} components" if parts > 1 else self._distribution()
        return f"{self.name} {number}, {layout}"

    def _components(self) -> list[list[str]]:
        """The host of each rank, by component."""
        nodes = nodes_of(self.environ.get("SLURM_STEP_NODELIST", ""))
        counts = counts_of(self.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
        if len(nodes) != len(counts):
            accepted = f"{len(counts)} nodes, as many as in SLURM_STEP_TASKS_PER_NODE"
            raise self.error("SLURM_STEP_NODELIST", accepted)
        by_node = dict(zip(nodes, counts, strict=True))
        # A step may have some of the components of its job.
        inside = [group for group in self._groups() if {*group} <= {*nodes}]
        return [
            ranks_of(self._distribution(), group, [by_node[node] for node in group])
            for group in (inside if len(inside) > 1 else [nodes])
        ]

    def _groups(self) -> Iterator[list[str]]:
        """The nodes of each component of a heterogeneous job."""
        for index in itertools.count():
            # `srun` without `sbatch` has only the old names.
            text = self.environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{index}") or self.environ.get(
                f"SLURM_JOB_NODELIST_PACK_GROUP_{index}"
            )
            if not text:
                return
            yield nodes_of(text)

    def _distribution(self) -> str:
        return distribution_of(self.environ.get("SLURM_DISTRIBUTION", ""))
