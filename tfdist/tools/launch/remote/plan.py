"""Places the tasks of a job on hosts, and creates a plan for each host.

    plan(job, hosts, environ=os.environ, tls=False)

The chief and the workers fill the slots in the order of the hosts. The ps are on the hosts in turn,
and a task beside the cluster on the first one.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from tfdist.cluster.ports import ports_of
from tfdist.cluster.task_types import WORKER
from tfdist.coordination.seal import TOKEN_VARIABLE, new_token
from tfdist.errors import refuse
from tfdist.tools.launch.host_discovery import Host
from tfdist.tools.launch.job_spec import JobSpec
from tfdist.tools.launch.task_plan import PLACE_VARIABLES, ScriptSpec, exec_flags

# The variables of this shell that the tasks get: what changes how TensorFlow computes.
_PASSED = ("TF_", "TFDIST_", "KERAS_", "HOROVOD_", "NCCL_", "OMP_", "PYTHONPATH", "PYTHONHASHSEED")


def plan(
    job: JobSpec, hosts: Sequence[Host], *, environ: Mapping[str, str], tls: bool
) -> dict[str, dict[str, Any]]:
    """What each host starts; hosts without a task are left out.

    Args:
      job: what to run.
      hosts: the hosts and their slots.
      environ: the environment of the launcher.
      tls: whether the tasks connect to each other over TLS.

    Returns:
      The message to each host, which plans its tasks from it; see `server.read_plan`:
        job: the fields of a `ScriptSpec`.
        cluster: the addresses by task type.
        executes: as in `Place`.
        computing: the names of its tasks that compute in every step.
        tasks: the names of the tasks to start.
        variables: what is added to the host's environment, with the job's token.

    Raises:
      UsageError: there are too few slots.
    """
    slots = [host.name for host in hosts for _ in range(host.slots)]
    training = job.counts.training
    if training > len(slots):
        most = len(slots) - training + job.counts[WORKER]
        accepted = f"at most {most}: the hosts have {len(slots)} slots"
        refuse({"workers": job.counts[WORKER]}, accepted, "Add hosts or slots: host:2 has two.")
    names = [host.name for host in hosts]
    others = job.counts.in_cluster - training
    places = slots[:training] + list(itertools.islice(itertools.cycle(names), others))
    token = new_token()  # Only this job has it.
    ports = ports_of(places, token)
    cluster = job.counts.cluster(f"{h}:{port}" for h, port in zip(places, ports, strict=True))
    at = dict.fromkeys(job.counts.tasks(), names[0])
    at |= dict(zip(cluster.tasks(), places, strict=True))
    variables = {
        name: value
        for name, value in environ.items()
        if name.startswith(_PASSED) and name not in PLACE_VARIABLES
    }
    compute = job.row.compute_tasks(cluster)
    return {
        host: {
            "job": {item.name: getattr(job, item.name) for item in fields(ScriptSpec)},
            "cluster": cluster.jobs(),
            "executes": exec_flags(job, tls=tls),
            "computing": [str(task) for task in compute if at[task] == host],
            "tasks": [str(task) for task, place in at.items() if place == host],
            "variables": {**variables, TOKEN_VARIABLE: token},
        }
        for host in dict.fromkeys(at.values())
    }
