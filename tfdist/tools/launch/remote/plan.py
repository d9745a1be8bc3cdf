"""Places the tasks of a job on hosts: what each host is told to start.

    plan(job, hosts, token="3f2a", environ=os.environ, directory="/home/me")

The chief and the workers fill the slots in the order of the hosts. The ps are on the hosts in turn,
and a task beside the cluster on the first one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.cluster.ports import ports_of
from tfdist.cluster.task_types import WORKER
from tfdist.coordination.seal import TOKEN_VARIABLE
from tfdist.errors import UsageError
from tfdist.tools.launch.host_discovery import Host
from tfdist.tools.launch.job_spec import (
    OLDER,
    PLACE_VARIABLES,
    JobSpec,
    TaskSpec,
    command_of,
    job_environment,
)

# The variables of this shell that the tasks get: what changes how TensorFlow computes.
_PASSED = ("TF_", "TFDIST_", "KERAS_", "HOROVOD_", "NCCL_", "OMP_", "PYTHONPATH", "PYTHONHASHSEED")


@dataclass(frozen=True)
class HostPlan:
    """What a host is told.

    Attributes:
      directory: the current directory of the tasks.
      grace_period: seconds that the tasks have to save.
      tells: whether the host tells what its tasks do.
      divides_cores: as in `JobSpec`.
      computing: the names of the tasks that compute in every step.
      tasks: what to start, without what depends on the host's cores.
    """

    directory: str
    grace_period: float
    tells: bool
    divides_cores: bool
    computing: tuple[str, ...]
    tasks: tuple[TaskSpec, ...]

    def as_json(self) -> dict[str, Any]:
        """The plan as `json` writes it; see `server.read_plan`."""
        return asdict(self)


def plan(
    job: JobSpec,
    hosts: Sequence[Host],
    *,
    token: str,
    environ: Mapping[str, str],
    directory: str,
    grace_period: float,
    tls: bool = False,
    tells: bool = False,
) -> dict[str, HostPlan]:
    """What each host starts; hosts without a task are left out.

    Args:
      job: what to run.
      hosts: the hosts and their slots.
      token: a text that only this job has.
      environ: the environment of the launcher.
      directory: the current directory, the same on every host.
      grace_period: seconds that the tasks have to save.
      tls: whether the tasks connect to each other over TLS.
      tells: whether the hosts tell what their tasks do.

    Raises:
      UsageError: there are too few slots.
    """
    slots = [host.name for host in hosts for _ in range(host.slots)]
    training = job.counts.training
    if training > len(slots):
        raise UsageError(
            "--workers",
            received=job.counts[WORKER],
            accepted=f"at most {len(slots) - training + job.counts[WORKER]}: the hosts have "
            f"{len(slots)} slots",
            remedy="Add hosts or slots: host:2 has two.",
        )
    names = [host.name for host in hosts]
    others = job.counts.in_cluster - training
    places = slots[:training] + list(itertools.islice(itertools.cycle(names), others))
    ports = ports_of(places, token)
    cluster = job.counts.cluster(f"{h}:{port}" for h, port in zip(places, ports, strict=True))
    at = dict.fromkeys(job.counts.tasks(), names[0])
    at |= dict(zip(cluster.tasks(), places, strict=True))
    common = {
        **{
            name: value
            for name, value in environ.items()
            if name.startswith(_PASSED) and name not in PLACE_VARIABLES
        },
        TOKEN_VARIABLE: token,
    }
    compute = job.row.compute_tasks(cluster)
    tasks: dict[str, list[TaskSpec]] = {}
    for task, host in at.items():
        environment = common | job_environment(job, task)
        needs_tunnel = tls and task.kind.in_cluster
        if needs_tunnel or job.cluster_as == "horovodrun":
            # It finds its place from TF_CONFIG.
            command = _execute(job, tls=needs_tunnel)
            environment["TF_CONFIG"] = cluster.tf_config(task)
        else:
            command = command_of(job.python, job.script, job.args, module=job.module)
            if job.cluster_as == "flags":
                command += tuple(cluster.flags(task))
            else:
                environment["TF_CONFIG"] = cluster.tf_config(task, older=job.cluster_as == OLDER)
        tasks.setdefault(host, []).append(TaskSpec(str(task), command, environment))
    return {
        host: HostPlan(
            directory,
            grace_period,
            tells,
            job.divides_cores,
            computing=tuple(str(task) for task in compute if at[task] == host),
            tasks=tuple(own),
        )
        for host, own in tasks.items()
    }


def _execute(job: JobSpec, *, tls: bool) -> tuple[str, ...]:
    """The command of a task that `tfdist exec` starts."""
    options = [f"--strategy={job.strategy}", f"--cluster_as={job.cluster_as}"]
    if tls:
        options.append("--tls")
    module = ("-m",) if job.module else ()
    return (job.python, "-m", "tfdist", "exec", *options, *module, job.script, *job.args)
