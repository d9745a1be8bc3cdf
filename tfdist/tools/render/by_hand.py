"""What to type on each machine of a job that is started by hand.

print(*places(cluster, cluster_as="flags"), sep="\n")         # [worker:0] --job_name=worker …
print(*commands(cluster, ["python", "train.py"], token))      # TF_CONFIG='…' … python train.py
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from tfdist.cluster import Cluster, Task
from tfdist.config.launch_options import FLAGS, OLDER, TF_CONFIG
from tfdist.coordination.seal import TOKEN_VARIABLE
from tfdist.tools.launch.task_plan import cluster_for

#: What a task can get its place from.
CLUSTER_AS = (TF_CONFIG, OLDER, FLAGS)
WORKER_PORT, PS_PORT = 2222, 2223


def on_each(hosts: Sequence[str]) -> Cluster:
    """A ps and a worker on each host; the first worker is the chief."""
    first, *others = (f"{host}:{WORKER_PORT}" for host in hosts)
    ps = tuple(f"{host}:{PS_PORT}" for host in hosts)
    return Cluster(chief=(first,), worker=tuple(others), ps=ps)


def places(
    cluster: Cluster, beside: Sequence[Task] = (), *, cluster_as: str = TF_CONFIG
) -> Iterator[str]:
    """A line for each task: the variable to export, or the flags for the script."""
    for task in (*cluster.tasks(), *beside):
        environ, flags = _place(cluster, task, cluster_as)
        yield f"[{task}] {shlex.join(flags)}" if flags else f"[{task}] export {environ}"


def commands(
    cluster: Cluster,
    words: Sequence[str],
    token: str,
    beside: Sequence[Task] = (),
    *,
    cluster_as: str = TF_CONFIG,
) -> Iterator[str]:
    """A comment with the task and its host, and the line of a shell that starts it, for each task.

    Args:
      cluster: the tasks.
      words: the command of each task, without its flags.
      token: the job's token.
      beside: tasks beside the cluster.
      cluster_as: what a task gets its place from.
    """
    for task in (*cluster.tasks(), *beside):
        environ, flags = _place(cluster, task, cluster_as)
        address = cluster.address(task) if task.kind.in_cluster else "any host:"
        command = shlex.join([*words, *flags])
        yield f"# {task}, on {address.rpartition(':')[0]}"
        # Assignments of the shell and not of `env`, whose arguments everyone can see.
        yield " ".join(filter(None, [f"{TOKEN_VARIABLE}={token}", environ, command]))


def _place(cluster: Cluster, task: Task, cluster_as: str) -> tuple[str, list[str]]:
    """The assignment of a variable, or flags."""
    variables, flags = cluster_for(cluster, task, cluster_as)
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items()), flags
