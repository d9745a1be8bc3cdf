"""The lines to type on each machine to start a job by hand.

print(*lines(cluster, (), [], "tf_config"), sep="\n")         # [worker:0] export TF_CONFIG=…
print(*lines(cluster, (), ["python", "train.py"], "flags"), sep="\n")
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from tfdist.cluster import Cluster, Task
from tfdist.config.launch_options import FLAGS, OLDER, RANKED, TF_CONFIG
from tfdist.coordination.seal import TOKEN_VARIABLE, new_token
from tfdist.tools.launch.task_plan import cluster_for

#: What a task can get its place from.
OF_TENSORFLOW = (TF_CONFIG, OLDER, FLAGS)
CLUSTER_AS = (*OF_TENSORFLOW, *RANKED)


def lines(
    cluster: Cluster, beside: Sequence[Task], words: Sequence[str], cluster_as: str
) -> Iterator[str]:
    """What to type for each task.

    Args:
      cluster: the tasks that have addresses.
      beside: the other tasks.
      words: the command of each task, without its flags; empty for its place alone.
      cluster_as: what a task gets its place from, one of `CLUSTER_AS`.

    Yields:
      Without a command, a line for each task: the variable to export, or the flags for the script.
      With one, a comment with the task and its host, and a line of a shell that starts it.
    """
    token = f"{TOKEN_VARIABLE}={new_token()}"
    for task in (*cluster.tasks(), *beside):
        variables, flags = cluster_for(cluster, task, cluster_as)
        environ = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        if not words:
            yield f"[{task}] {shlex.join(flags) or ' '.join(['export', *environ])}"
            continue
        address = cluster.address(task) if task.kind.in_cluster else "any host:"
        yield f"# {task}, on {address.rpartition(':')[0]}"
        # Assignments of the shell and not of `env`, whose arguments everyone can see.
        yield " ".join([token, *environ, shlex.join([*words, *flags])])
