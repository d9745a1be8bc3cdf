"""`tfdist check`: checks that the tasks of a job reach each other, or that packages fit."""

from __future__ import annotations

import argparse
import os

from tfdist.compat.versions import refusal
from tfdist.config.flags import JobFlags
from tfdist.config.role import find_role
from tfdist.coordination import startup
from tfdist.coordination.seal import token_of
from tfdist.errors import EXIT_FAILED, EXIT_OK
from tfdist.process import packages
from tfdist.tools.commands.arguments import (
    Commands,
    cluster_flags,
    flag,
    job_flags,
    read_cluster_flags,
    read_job_flags,
    strategy_flag,
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
        "reach each other, 1: they do not, 2: the configuration is invalid. Without "
        f"--startup_timeout they wait {_STARTUP_TIMEOUT:g} seconds for each other.",
    )
    flag(
        check,
        "versions",
        action="store_true",
        help="only print the installed packages that require TensorFlow or Keras, and whether they "
        "fit; exit code 1: one does not",
    )
    cluster_flags(check)
    strategy_flag(check, "the strategy of the training", default=None)
    job_flags(check)
    check.set_defaults(run=_check)
    check.examples = (
        "tfdist check --job_name=worker --task_index=0 --worker_hosts=node1:2222,node2:2222",
        "tfdist check --versions",
    )


def _check_versions() -> int:
    # Only this command needs `packaging`, which takes 30 ms.
    from tfdist.process.requirements import conflicts

    print(packages.description())
    found, versions = conflicts(), packages.installed()
    if {"tensorflow", "keras"} <= versions.keys():
        reason = refusal(versions["tensorflow"], versions["keras"])
        found["training with several replicas"] = [reason] if reason else []
    for package, reasons in found.items():
        print(f"{package}: {'; '.join(reasons) or 'fits'}")
    return EXIT_FAILED if any(found.values()) else EXIT_OK


def _check(arguments: argparse.Namespace) -> int:
    if arguments.versions:
        return _check_versions()
    given = read_job_flags(arguments)
    flags = JobFlags.of(cluster=read_cluster_flags(arguments), strategy=arguments.strategy, **given)
    role = find_role(flags, os.environ)
    cluster, task, row = role.cluster, role.task, role.spec
    tasks = cluster.tasks()
    if task not in tasks:
        print(f"tfdist: {task} of {cluster} ({role.config.source}) has no other task to reach.")
        return EXIT_OK
    config = startup.BarrierConfig(
        startup.Hello(
            cluster=cluster,
            task=task,
            strategy=row.name,
            versions=startup.versions(row.packages),
            purpose="check",
        ),
        timeout=given.get("startup_timeout", _STARTUP_TIMEOUT),
        token=token_of(os.environ),
    )
    outcome = startup.wait_at_barrier(config)
    if outcome.verdict:
        print(f"tfdist: error: {outcome}")
        return EXIT_FAILED
    print(f"tfdist: all {len(tasks)} tasks reach each other ({outcome.seconds:.2f} s).")
    return EXIT_OK
