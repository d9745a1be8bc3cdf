"""`tfdist check`: checks that the tasks of a job reach each other."""

from __future__ import annotations

import argparse
import os

from tfdist.config.flags import JobFlags
from tfdist.config.role import find_role
from tfdist.config.strategies import table
from tfdist.coordination import startup
from tfdist.coordination.seal import token_of
from tfdist.errors import EXIT_FAILED, EXIT_OK
from tfdist.tools.commands.arguments import (
    Commands,
    cluster_flags,
    flag,
    option_flags,
    read_cluster_flags,
    read_option_flags,
    some_seconds,
)

_STARTUP_TIMEOUT = 60.0


def add_to(commands: Commands) -> None:
    """Adds the command to the parser."""
    check = commands.add_parser(
        "check",
        help="check that the tasks of a job reach each other",
        description="Checks the configuration of one task without training. Connects to the other "
        "tasks, which run the same command, and prints the task at fault, and which tasks do not "
        "reach it. Flags or TF_CONFIG define the cluster and this task. Exit code 0: all tasks "
        "reach each other, 1: they do not, 2: the configuration is invalid.",
        allow_abbrev=False,
    )
    cluster_flags(check)
    flag(
        check, "strategy", values=table.rows(), metavar="NAME", help="the strategy of the training"
    )
    flag(
        check,
        "startup_timeout",
        type=some_seconds,
        metavar="S",
        help=f"seconds that the tasks wait for each other (default {_STARTUP_TIMEOUT:g})",
    )
    option_flags(check, exclude=["startup_timeout"])
    check.set_defaults(run=_check)
    check.examples = (
        "tfdist check --job_name=worker --task_index=0 --worker_hosts=node1:2222,node2:2222",
    )


def _check(arguments: argparse.Namespace) -> int:
    flags = JobFlags.of(
        read_cluster_flags(arguments), strategy=arguments.strategy, **read_option_flags(arguments)
    )
    role = find_role(flags, os.environ)
    cluster, task, row = role.cluster, role.task, role.spec
    tasks = cluster.tasks()
    if task not in tasks:
        print(f"tfdist: {task} of {cluster} ({role.config.source}) has no other task to reach.")
        return EXIT_OK
    config = startup.BarrierConfig(
        cluster=cluster,
        task=task,
        strategy=row.name,
        timeout=arguments.startup_timeout or _STARTUP_TIMEOUT,
        purpose="check",
        token=token_of(os.environ),
        versions=startup.versions(row.packages),
    )
    outcome = startup.wait_at_barrier(config)
    if outcome.verdict:
        print(f"tfdist: error: {outcome}")
        return EXIT_FAILED
    print(f"tfdist: all {len(tasks)} tasks reach each other ({outcome.seconds:.2f} s).")
    return EXIT_OK
