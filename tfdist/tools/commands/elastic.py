"""The flags of `tfdist run` for elastic jobs."""

from __future__ import annotations

import argparse

from tfdist.cluster import task_types
from tfdist.cluster.config import ClusterFlags
from tfdist.config.strategies import table
from tfdist.errors import UsageError
from tfdist.tools.commands.arguments import flag, seconds
from tfdist.tools.launch.elastic_job import Elasticity
from tfdist.tools.launch.host_discovery import FLAG as HOST_DISCOVERY


def elastic_flags(run: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    flag(
        run,
        "host_discovery_script",
        metavar="PROGRAM",
        help="makes the job elastic: PROGRAM prints host:slots for each machine that is available; "
        "when its output changes, all workers save and restart with the new number of workers",
    )
    flag(run, "min_workers", type=int, metavar="N", help="wait for this many workers (default 1)")
    flag(run, "max_workers", type=int, metavar="N", help="start at most this many workers")
    flag(
        run,
        "elastic_timeout",
        type=seconds,
        metavar="S",
        help="seconds to wait for --min_workers, and for this machine in the list (default 600)",
    )
    flag(
        run,
        "host",
        metavar="HOST",
        help="this machine's name in the list (default: the entry with this machine's address)",
    )
    flag(
        run,
        "port",
        type=int,
        metavar="PORT",
        help="the first port of each host's workers; required if several machines are listed",
    )


def elasticity_of(arguments: argparse.Namespace) -> Elasticity | None:
    """The settings of an elastic job; None for any other job.

    Raises:
      UsageError: a flag does not fit an elastic job, or the others.
    """
    names = ("min_workers", "max_workers", "elastic_timeout", "host", "port")
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.host_discovery_script is None:
        for name, value in given.items():
            raise UsageError(
                f"--{name}",
                received=value,
                accepted=f"only together with {HOST_DISCOVERY}",
                remedy="Pass the program that lists the hosts, or use --workers.",
            )
        return None
    for name in (*task_types.by_flag(), "dry_run", *ClusterFlags.defined()):
        if getattr(arguments, name) not in (None, False):
            raise UsageError(
                f"--{name}",
                received=getattr(arguments, name),
                accepted=f"not supported with {HOST_DISCOVERY}, which sets the number of workers",
                remedy="Leave one of them out.",
            )
    if arguments.cluster_as != "tf_config":
        raise UsageError(
            "--cluster_as",
            received=arguments.cluster_as,
            accepted=f"tf_config with {HOST_DISCOVERY}",
            remedy="Leave one of them out.",
        )
    elastic = [row.name for row in table.rows().values() if row.elastic]
    if arguments.strategy not in elastic:
        raise UsageError(
            "--strategy",
            received=arguments.strategy,
            accepted=f"{' or '.join(elastic)} with {HOST_DISCOVERY}",
            remedy="Choose one of these.",
        )
    if arguments.max_workers is None:
        raise UsageError(
            "--max_workers",
            received=None,
            accepted=f"a number with {HOST_DISCOVERY}",
            remedy="Pass the maximum number of workers.",
        )
    given["timeout"] = given.pop("elastic_timeout", Elasticity.timeout)
    return Elasticity(script=arguments.host_discovery_script, **given)
