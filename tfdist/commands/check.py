"""`tfdist check`: checks that tasks reach each other, and prints what the versions support."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields

from tfdist.cluster.discovery import ClusterFlags, discover
from tfdist.commands.arguments import (
    Commands,
    cluster_flags,
    flag,
    read_cluster_flags,
    some_seconds,
)
from tfdist.coordination import startup
from tfdist.errors import EXIT_FAILED, EXIT_OK, UsageError
from tfdist.strategies import table

_STARTUP_TIMEOUT = 60.0


def add_to(commands: Commands) -> None:
    """Adds the command to the parser's."""
    check = commands.add_parser(
        "check",
        help="check that the tasks of a job reach each other",
        description="Checks the configuration of one task instead of training it, and connects "
        "to the other tasks, which run the same command; prints which task reaches which, and the "
        "task at fault. Flags or TF_CONFIG say which task this is. Exit code 0: all is well, 1: "
        "the tasks do not reach each other, 2: the configuration cannot be used. With --versions "
        "it only prints what works with which TensorFlow and Keras, and ends with 0 if it knows "
        "the installed versions, with 1 if it does not.",
        allow_abbrev=False,
    )
    cluster_flags(check)
    flag(check, "strategy", metavar="NAME", help="the strategy to train under")
    flag(
        check,
        "startup_timeout",
        type=some_seconds,
        metavar="S",
        help=f"seconds that the tasks wait for each other (default {_STARTUP_TIMEOUT:g})",
    )
    flag(
        check,
        "versions",
        action="store_true",
        help="print what works with which TensorFlow and Keras, and with those that are installed",
    )
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.versions:
        return _versions(arguments)
    # Here, because it takes longer to load than all else.

    found = discover(read_cluster_flags(arguments), os.environ)
    cluster, task = found.cluster, found.task
    row = table.named(arguments.strategy or "auto", os.environ, cluster, found.source)
    table.check(row, cluster, found.source)
    tasks = cluster.tasks()
    if task not in tasks:
        print(f"tfdist: {task} of {cluster} ({found.source}) has no other task to reach.")
        return EXIT_OK
    startup.check_port(cluster, task)
    startup.check_addresses(cluster)
    party = startup.BarrierConfig(
        cluster=cluster,
        task=task,
        strategy=row.name,
        timeout=arguments.startup_timeout or _STARTUP_TIMEOUT,
        purpose="check",
        token=os.environ.get(startup.TOKEN_VARIABLE, ""),
    )
    outcome = startup.wait_at_barrier(party)
    if outcome.verdict:
        print(f"tfdist: error: {outcome}")
        return EXIT_FAILED
    print(f"tfdist: all {len(tasks)} tasks reach each other ({outcome.seconds:.2f} s)\n{outcome}")
    return EXIT_OK


def _versions(arguments: argparse.Namespace) -> int:
    from tfdist.commands import versions
    from tfdist.compat import stacks

    for name in (*(item.name for item in fields(ClusterFlags)), "strategy", "startup_timeout"):
        value = getattr(arguments, name)
        if value is not None:
            raise UsageError(
                f"--{name}",
                received=value,
                accepted="not supported with --versions",
                remedy="Leave one of them out.",
            )
    found = stacks.installed()
    print(found, "", *versions.table(found), "", *versions.remarks(found), sep="\n")
    return EXIT_OK if found.stacks else EXIT_FAILED
