"""Arguments that several `tfdist` commands share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping
from typing import Any

from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.task_counts import TaskCounts
from tfdist.cluster.task_types import TaskType
from tfdist.config import flags
from tfdist.config.flags import AUTO
from tfdist.config.launch_options import ElasticOptions
from tfdist.config.options import Option
from tfdist.config.strategies import table
from tfdist.errors import UsageError

# The result of `ArgumentParser.add_subparsers`.
Commands = Any


def read_cluster_flags(arguments: argparse.Namespace) -> ClusterFlags:
    """The values of the flags that `cluster_flags` adds."""
    names = ClusterFlags.defined()
    return ClusterFlags(**{name: getattr(arguments, name, None) for name in names})


def cluster_flags(parser: Any, *, with_task: bool = True) -> None:
    """Adds the flags that describe a cluster, and this process's task.

    Args:
      parser: an `ArgumentParser`, or one of its groups.
      with_task: whether to add those of this process's task.
    """
    for name, help in ClusterFlags.defined().items():
        if with_task or name.endswith("_hosts"):
            flag(parser, name, help=help)


def number_flags(parser: argparse.ArgumentParser, kinds: Mapping[str, TaskType]) -> None:
    """Adds the flags that set the numbers of tasks; `kinds` has the types by flag."""
    for name, kind in kinds.items():
        if kind.most == 1:
            flag(parser, name, action="store_true", help=kind.help)
        else:
            flag(parser, name, type=int, metavar="N", help=kind.help)


def read_numbers(
    arguments: argparse.Namespace, kinds: Mapping[str, TaskType], *, workers: int = 0
) -> TaskCounts:
    """The values of the flags of `number_flags`; `workers` is the default of --workers."""
    counts = TaskCounts(**{kind.name: getattr(arguments, name) for name, kind in kinds.items()})
    return counts.with_workers(workers) if workers and arguments.workers is None else counts


def strategy_flag(parser: argparse.ArgumentParser, help: str, default: str | None = AUTO) -> None:
    """Adds `--strategy`."""
    flag(parser, "strategy", default=default, values=table.rows(), metavar="NAME", help=help)


def job_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of jobs and of all strategies, except `strategy`."""
    group = parser.add_argument_group(
        "flags of the job",
        "for a script that uses tfdist; the same flags after SCRIPT have precedence",
    )
    add_options(group, _job_options())


def read_job_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The values of the flags that `job_flags` has added, if they were given, by name.

    Raises:
      UsageError: a value is out of its bounds.
    """
    given = read_options(arguments, _job_options())
    flags.JobFlags.of(**given)
    return given


def _job_options() -> dict[str, Option]:
    # `tfdist run` passes its own --min_workers on.
    others = ("strategy", *ElasticOptions.defined())
    return {name: each for name, each in flags.option_flags().items() if name not in others}


def add_options(parser: Any, options: Mapping[str, Option]) -> None:
    """Adds a flag for each option, without a default.

    Args:
      parser: an `ArgumentParser`, or one of its groups.
      options: the options, by name.
    """
    for name, defined in options.items():
        help = defined.full_help.replace("%", "%%")
        if defined.type is bool:
            flag(parser, name, action="store_const", const=True, help=help)
            unset: dict[str, Any] = {"dest": name, "const": False, "help": argparse.SUPPRESS}
            flag(parser, f"no{name}", action="store_const", **unset)
        else:
            metavar = {int: "N", float: "X", str: "NAME"}[defined.type]
            flag(
                parser, name, type=defined.type, values=defined.choices, metavar=metavar, help=help
            )


def read_options(arguments: argparse.Namespace, options: Iterable[str]) -> dict[str, Any]:
    """The values of the flags that `add_options` has added, if they were given, by name."""
    values = {name: getattr(arguments, name, None) for name in options}
    return {name: value for name, value in values.items() if value is not None}


def script_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Adds the script and its arguments."""
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module's name")
    parser.add_argument(
        "script",
        metavar="SCRIPT",
        nargs=None if required else "?",
        help="the training script",
    )
    parser.add_argument(
        "args", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments for the script"
    )


def check_script(arguments: argparse.Namespace) -> None:
    """Checks that there is a script.

    Raises:
      UsageError: there is none.
    """
    if not arguments.module and not os.path.isfile(arguments.script):
        raise UsageError(
            "SCRIPT",
            received=arguments.script,
            accepted="the path of a Python script, or -m and the name of a module",
            remedy="Leave it out: tfdist starts Python itself."
            if os.path.basename(arguments.script).startswith("python")
            else "Correct the path: there is no such file.",
        )


def flag(parser: Any, name: str, *, values: Iterable[str] = (), **options: Any) -> None:
    """Adds a flag that accepts underscores and dashes, as the flags of scripts do.

    Args:
      parser: an `ArgumentParser`, or one of its groups.
      name: the name, with underscores.
      values: what a shell completes, if there are no `choices`.
      options: for `add_argument`.
    """
    spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    action = parser.add_argument(*spellings, **{"dest": name, **options})
    action.option_strings = [f"--{name}"]  # Help and completion have each flag once.
    if values:
        action.completer = lambda **_: list(values)
