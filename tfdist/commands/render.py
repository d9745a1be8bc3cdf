"""`tfdist render`: what to start on which machine."""

from __future__ import annotations

import argparse
import shlex

from tfdist.cluster import Cluster, Task
from tfdist.cluster.discovery import ClusterFlags, from_flags
from tfdist.commands.arguments import Commands, flag, hosts_flags
from tfdist.errors import EXIT_OK, UsageError


def add_to(commands: Commands) -> None:
    """Adds the command to the parser's."""
    render = commands.add_parser(
        "render",
        help="print what to start on which machine",
        description="Prints a line for each task of a job that is started by hand on several "
        "machines.",
        allow_abbrev=False,
    )
    hosts_flags(render)
    flag(
        render,
        "evaluator",
        action="store_true",
        help="one more task, which evaluates the checkpoints",
    )
    flag(
        render,
        "format",
        choices=("tf_config", "flags"),
        default="tf_config",
        help="what to export (tf_config, the default), or what to give the script (flags)",
    )
    render.set_defaults(run=_render)


def _render(arguments: argparse.Namespace) -> int:
    # As an evaluator, which fits any cluster, so that only the hosts are checked.
    flags = ClusterFlags(
        job_name="evaluator",
        task_index="0",
        chief_hosts=arguments.chief_hosts,
        worker_hosts=arguments.worker_hosts,
        ps_hosts=arguments.ps_hosts,
    )
    found = from_flags(flags)
    cluster = found.cluster if found else Cluster()
    if not cluster:
        raise UsageError(
            "--worker_hosts",
            received=arguments.worker_hosts,
            accepted="host:port of each worker, separated by commas",
            remedy="Name the machines that train.",
        )
    evaluators = (Task("evaluator", 0),) if arguments.evaluator else ()
    for task in (*cluster.tasks(), *evaluators):
        if arguments.format == "flags":
            print(f"[{task}] {shlex.join(cluster.flags(task))}")
        else:
            print(f"[{task}] export TF_CONFIG={shlex.quote(cluster.tf_config(task))}")
    return EXIT_OK
