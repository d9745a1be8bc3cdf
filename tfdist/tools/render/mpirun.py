"""The command of a job for `mpirun`, and for `horovodrun`.

print(mpirun(job, SlotsOptions(hosts="a:2,b:2")))
print(horovodrun(job, SlotsOptions(hosts="a:2,b:2")))
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from tfdist.config.options import Options, option
from tfdist.coordination.seal import TOKEN_VARIABLE
from tfdist.errors import refuse
from tfdist.tools.render.rendered_job import EXPORT_TOKEN, RenderedJob


@dataclass(frozen=True)
class SlotsOptions(Options):
    """The flags of the commands."""

    hosts: str = option(
        "", "HOST:SLOTS,...: the hosts, and the numbers of tasks on each (default: this machine)"
    )

    @property
    def slots(self) -> str:
        """The hosts as a word of a shell; empty for this machine."""
        hosts = self.hosts.replace(" ", "")
        return shlex.quote(hosts) if hosts else ""


def mpirun(job: RenderedJob, options: SlotsOptions) -> str:
    """The lines of a shell that start a job with Open MPI."""
    count = sum(job.counts.values())
    # By default Open MPI binds each rank to one core, and gives a hyperthreaded core one rank.
    mpi = f"mpirun -np {count} -x {TOKEN_VARIABLE} --bind-to none --map-by slot"
    place = f"--host {options.slots}" if options.slots else "--oversubscribe"
    return f"{EXPORT_TOKEN}\n{mpi} {place} {shlex.join(job.command(by_rank=True))}"


def horovodrun(job: RenderedJob, options: SlotsOptions) -> str:
    """The command for `horovodrun` over Gloo.

    Raises:
      UsageError: the job has other tasks than workers, or another strategy.
    """
    # There is always a worker.
    if job.spec.row.source != "horovodrun" or len(job.counts) > 1:
        given = {"strategy": f"{job.spec.strategy} with {', '.join(job.counts)}"}
        accepted = "horovod with workers alone, under horovodrun"
        refuse(given, accepted, "Choose --strategy=horovod, or another engine.")
    (count,) = job.counts.values()
    slots = options.slots or f"localhost:{count}"
    return f"horovodrun --gloo -np {count} -H {slots} {shlex.join(job.command())}"
