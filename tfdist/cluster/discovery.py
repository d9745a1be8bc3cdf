"""Finds the cluster and this task.

    config = discover(flags=ClusterFlags(), environ=os.environ)
    config.cluster, config.task, config.source

The first environment that is present is used, in the order of the table: command-line flags,
`TF_CONFIG`, the variables of `horovodrun`, then those of other engines. Without any, the job is
this process alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from tfdist.cluster import environments
from tfdist.cluster.config import ClusterConfig, ClusterFlags
from tfdist.cluster.environments.base import RankEnvironment
from tfdist.cluster.task_counts import TaskCounts
from tfdist.errors import refuse


def discover(
    flags: ClusterFlags, environ: Mapping[str, str], counts: TaskCounts | None = None
) -> ClusterConfig:
    """Reads the cluster and this task from the first environment that describes a job.

    Args:
      flags: the flags that describe the cluster.
      environ: the environment variables.
      counts: how many ranks are ps and the like, where an engine numbers the tasks.

    Raises:
      UsageError: this environment is invalid, or has no ranks. Later ones are not tried, so a
        mistake never starts a job of one process.
    """
    for environment in environments.TABLE:
        if config := environment(environ, flags, counts).config():
            if not issubclass(environment, RankEnvironment):
                _check_no_counts(counts, environment.name)
            return config
    _check_no_counts(counts, "a process alone")
    return ClusterConfig()


def _check_no_counts(counts: TaskCounts | None, source: str) -> None:
    flags = " or ".join(f"--{kind.flag}" for kind in counts.kinds()) if counts else ""
    refuse(
        counts.rank_flags() if counts else {},
        f"only where an engine numbers the tasks, such as Slurm, and not with {source}",
        f"Leave it out. With tfdist run, write {flags} before the script.",
    )
