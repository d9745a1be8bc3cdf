"""Arguments that several `tfdist` commands share, and argparse types."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tfdist.cluster.config import ClusterFlags
from tfdist.cluster.task_counts import TaskCounts
from tfdist.cluster.task_types import TaskType
from tfdist.config import flags
from tfdist.errors import UsageError

#: What argparse makes of the text of a flag's value.
_TYPES: dict[type, Callable[[str], Any]] = {int: int, float: float, str: str}

# The result of `ArgumentParser.add_subparsers`.
Commands = Any


def read_cluster_flags(arguments: argparse.Namespace) -> ClusterFlags:
    """The values of the flags that `cluster_flags` and `hosts_flags` add."""
    names = ClusterFlags.defined()
    return ClusterFlags(**{name: getattr(arguments, name, None) for name in names})


def cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that describe a cluster and this process's task."""
    for name, help in ClusterFlags.defined().items():
        flag(parser, name, metavar=None if name.endswith("_hosts") else "NAME", help=help)


def hosts_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that describe a cluster."""
    for name, help in ClusterFlags.defined().items():
        if name.endswith("_hosts"):
            flag(parser, name, help=help)


def number_flags(parser: argparse.ArgumentParser, kinds: Mapping[str, TaskType]) -> None:
    """Adds the flags that ask for tasks of some types, by the flag's name."""
    for name, kind in kinds.items():
        if kind.most == 1:
            flag(parser, name, action="store_true", help=kind.help)
        else:
            flag(parser, name, type=int, metavar="N", help=kind.help)


def read_numbers(arguments: argparse.Namespace, kinds: Mapping[str, TaskType]) -> TaskCounts:
    """The values of the flags that `number_flags` has added."""
    return TaskCounts(**{kind.name: getattr(arguments, name) for name, kind in kinds.items()})


def option_flags(parser: argparse.ArgumentParser, exclude: Sequence[str] = ()) -> None:
    """Adds the flags of jobs and of all strategies, except `strategy`.

    Args:
      parser: the parser.
      exclude: flags that the command itself has.
    """
    group = parser.add_argument_group(
        "flags of the job",
        "for a script that uses tfdist; the same flags after SCRIPT have precedence",
    )
    for name, defined in flags.option_flags().items():
        if name == "strategy" or name in exclude:
            continue
        if defined.type is bool:
            spellings = dict.fromkeys([name, name.replace("_", "-")])
            for value, prefix in ((True, "--"), (False, "--no")):
                group.add_argument(
                    *(prefix + each for each in spellings),
                    dest=name,
                    action="store_const",
                    const=value,
                    help=defined.full_help if value else argparse.SUPPRESS,
                )
        else:
            metavar = {int: "N", float: "X", str: "NAME"}[defined.type]
            flag(
                group,
                name,
                type=_TYPES[defined.type],
                values=defined.choices,
                metavar=metavar,
                help=defined.full_help.replace("%", "%%"),
            )


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
            remedy="Correct the path: there is no such file.",
        )


def read_option_flags(arguments: argparse.Namespace) -> dict[str, Any]:
    """The values of the flags that `option_flags` has added, if they were given, by name.

    Raises:
      UsageError: a value is out of its bounds.
    """
    given = {
        name: value
        for name in flags.option_flags()
        if name != "strategy" and (value := getattr(arguments, name, None)) is not None
    }
    flags.JobFlags.of(**given)
    return given


def flag(parser: Any, name: str, *, values: Iterable[str] = (), **options: Any) -> None:
    """Adds a flag that accepts underscores and dashes, as the flags of scripts do.

    Args:
      parser: an `ArgumentParser`, or one of its groups.
      name: the name, with underscores.
      values: what a shell completes, if there are no `choices`.
      options: for `add_argument`.
    """
    spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    action = parser.add_argument(*spellings, dest=name, **options)
    if values:
        action.completer = lambda **_: list(values)


def count(text: str) -> int:
    """An argparse `type`: an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: a number from 0")
    return int(text)


def positive(text: str) -> int:
    """An argparse `type`: an integer of at least 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: a number from 1")
    return int(text)


def seconds(text: str) -> float:
    """An argparse `type`: seconds, at least 0."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: seconds from 0")
    return value


def some_seconds(text: str) -> float:
    """An argparse `type`: seconds, above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: seconds above 0")
    return value
