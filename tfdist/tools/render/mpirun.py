"""The command of a job for `mpirun`, and for `horovodrun`.

print(mpirun(job, ["a:2", "b:2"]))
print(horovodrun(job, ["a:2", "b:2"]))
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from tfdist.coordination.seal import TOKEN_VARIABLE
from tfdist.errors import refuse
from tfdist.tools.render.rendered_job import EXPORT_TOKEN, RenderedJob


def mpirun(job: RenderedJob, hosts: Sequence[str]) -> str:
    """The lines of a shell that start a job with Open MPI.

    Args:
      job: the job.
      hosts: `host:slots` of each host; empty for this machine.
    """
    count = sum(job.counts.values())
    # By default Open MPI binds each rank to one core, and gives a hyperthreaded core one rank.
    mpi = f"mpirun -np {count} -x {TOKEN_VARIABLE} --bind-to none --map-by slot"
    place = f"--host {shlex.quote(','.join(hosts))}" if hosts else "--oversubscribe"
    return f"{EXPORT_TOKEN}\n{mpi} {place} {shlex.join(job.command(by_rank=True))}"


def horovodrun(job: RenderedJob, hosts: Sequence[str]) -> str:
    """The command for `horovodrun` over Gloo.

    Args:
      job: the job.
      hosts: `host:slots` of each host; empty for this machine.

    Raises:
      UsageError: the job has other tasks than workers, or another strategy.
    """
    # There is always a worker.
    if job.spec.row.source != "horovodrun" or len(job.counts) > 1:
        given = {"strategy": f"{job.spec.strategy} with {', '.join(job.counts)}"}
        accepted = "horovod with workers alone, under horovodrun"
        refuse(given, accepted, "Choose --strategy=horovod, or another engine.")
    (count,) = job.counts.values()
    slots = shlex.quote(",".join(hosts) or f"localhost:{count}")
    return f"horovodrun --gloo -np {count} -H {slots} {shlex.join(job.command())}"
