"""What to type on each machine of a job that is started by hand.

print(*lines(cluster, (), [], HandOptions()), sep="\n")         # [worker:0] export TF_CONFIG=…
print(*lines(cluster, (), ["python", "train.py"], HandOptions(cluster_as="flags")), sep="\n")
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tfdist.cluster import Cluster, Task
from tfdist.config.launch_options import FLAGS, OLDER, TF_CONFIG
from tfdist.config.options import Options, option
from tfdist.coordination.seal import TOKEN_VARIABLE, new_token
from tfdist.tools.launch.task_plan import cluster_for
from tfdist.tools.render.rendered_job import names

_WORKER_PORT, _PS_PORT = 2222, 2223


@dataclass(frozen=True)
class HandOptions(Options):
    """The flags of `tfdist render hosts`, except the addresses."""

    hosts: str | None = option(
        None,
        f"HOST,...: instead of addresses, a worker (port {_WORKER_PORT}) and a ps (port "
        f"{_PS_PORT}) on each host; the first worker is the chief",
    )
    cluster_as: str = option(
        TF_CONFIG,
        "what a task gets its place from. tf_config: TF_CONFIG; master: its older dialect, which "
        "calls the chief `master`; flags: arguments for the script",
        choices=(TF_CONFIG, OLDER, FLAGS),
    )


def on_each(hosts: str) -> Cluster:
    """A ps and a worker on each of some hosts, as `a,b`; the first worker is the chief."""
    first, *others = (f"{host}:{_WORKER_PORT}" for host in names(hosts))
    ps = tuple(f"{host}:{_PS_PORT}" for host in names(hosts))
    return Cluster(chief=(first,), worker=tuple(others), ps=ps)


def lines(
    cluster: Cluster, beside: Sequence[Task], words: Sequence[str], options: HandOptions
) -> Iterator[str]:
    """What to type for each task.

    Args:
      cluster: the tasks that have addresses.
      beside: the other tasks.
      words: the command of each task, without its flags; empty for its place alone.
      options: what a task gets its place from.

    Yields:
      Without a command, a line for each task: the variable to export, or the flags for the script.
      With one, a comment with the task and its host, and a line of a shell that starts it.
    """
    token = f"{TOKEN_VARIABLE}={new_token()}"
    for task in (*cluster.tasks(), *beside):
        variables, flags = cluster_for(cluster, task, options.cluster_as)
        environ = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        if not words:
            yield f"[{task}] {shlex.join(flags) or ' '.join(['export', *environ])}"
            continue
        address = cluster.address(task) if task.kind.in_cluster else "any host:"
        yield f"# {task}, on {address.rpartition(':')[0]}"
        # Assignments of the shell and not of `env`, whose arguments everyone can see.
        yield " ".join([token, *environ, shlex.join([*words, *flags])])
