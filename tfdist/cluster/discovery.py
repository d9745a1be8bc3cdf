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
from tfdist.cluster.roles import Roles
from tfdist.errors import UsageError


def discover(
    flags: ClusterFlags, environ: Mapping[str, str], roles: Roles | None = None
) -> ClusterConfig:
    """Reads the cluster and this task from the first environment that describes a job.

    Args:
      flags: the flags that describe the cluster.
      environ: the environment variables.
      roles: how many ranks have which role, where an engine numbers the tasks.

    Raises:
      UsageError: this environment is invalid, or has no ranks to give roles to. Later ones are not
        tried, so a mistake never starts a job of one process.
    """
    for environment in (make(environ, flags, roles) for make in environments.table()):
        if environment.is_present():
            if not isinstance(environment, RankEnvironment):
                _check_no_roles(roles, environment.name)
            return environment.config()
    _check_no_roles(roles, "a process alone")
    return ClusterConfig()


def _check_no_roles(roles: Roles | None, source: str) -> None:
    if roles is None or roles == Roles():
        return
    raise UsageError(
        "--num_ps" if roles.num_ps else "--evaluator",
        received=roles.num_ps or roles.evaluator,
        accepted=f"only where an engine numbers the tasks, such as Slurm, and not with {source}",
        remedy="Leave it out. With tfdist run, write --ps or --evaluator before the script.",
    )
