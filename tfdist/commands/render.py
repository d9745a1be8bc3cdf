"""`tfdist render`: prints the TF_CONFIG or the flags of each task of a cluster."""

from __future__ import annotations

import argparse
import shlex

from tfdist.cluster import Cluster, Task
from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.environments.flags import from_flags
from tfdist.commands.arguments import Commands, flag, hosts_flags
from tfdist.errors import EXIT_OK, UsageError


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    render = commands.add_parser(
        "render",
        help="print the TF_CONFIG or the flags of each task",
        description="Prints the TF_CONFIG or the flags of each task, for a job that you start by "
        "hand on several machines.",
        allow_abbrev=False,
    )
    hosts_flags(render)
    flag(
        render,
        "evaluator",
        action="store_true",
        help="add a task that evaluates the checkpoints",
    )
    flag(
        render,
        "format",
        choices=("tf_config", "flags"),
        default="tf_config",
        help="tf_config (the default): an export command; flags: arguments for the script",
    )
    render.set_defaults(run=_render)


def _render(arguments: argparse.Namespace) -> int:
    # An evaluator is valid in any cluster, so this checks only the hosts.
    flags = ClusterFlags(
        job_name="evaluator",
        task_index="0",
        chief_hosts=arguments.chief_hosts,
        worker_hosts=arguments.worker_hosts,
        ps_hosts=arguments.ps_hosts,
    )
    cluster_config = from_flags(flags)
    cluster = cluster_config.cluster if cluster_config else Cluster()
    if not cluster:
        raise UsageError(
            "--worker_hosts",
            received=arguments.worker_hosts,
            accepted="host:port of each worker, separated by commas",
            remedy="Name the machines to train on.",
        )
    evaluators = (Task("evaluator", 0),) if arguments.evaluator else ()
    for task in (*cluster.tasks(), *evaluators):
        if arguments.format == "flags":
            print(f"[{task}] {shlex.join(cluster.flags(task))}")
        else:
            print(f"[{task}] export TF_CONFIG={shlex.quote(cluster.tf_config(task))}")
    return EXIT_OK
