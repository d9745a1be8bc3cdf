"""What the commands' arguments have in common."""

from __future__ import annotations

import argparse
import math
from dataclasses import fields
from typing import Any

from tfdist.cluster.discovery import ClusterFlags

# What `add_subparsers` returns.
Commands = Any


def read_cluster_flags(arguments: argparse.Namespace) -> ClusterFlags:
    """What was given of `cluster_flags`."""
    names = [item.name for item in fields(ClusterFlags)]
    return ClusterFlags(**{name: getattr(arguments, name) for name in names})


def cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that describe a cluster and this task of it."""
    flag(parser, "job_name", metavar="NAME", help="the job that this task belongs to")
    flag(parser, "task_index", metavar="N", help="the index of this task within its job, from 0")
    hosts_flags(parser)


def hosts_flags(parser: argparse.ArgumentParser) -> None:
    """Adds those of the flags that describe a cluster."""
    for name in ("worker", "chief", "ps"):
        flag(
            parser,
            f"{name}_hosts",
            metavar="HOST:PORT,...",
            help=f"the addresses of the job {name!r}, separated by commas",
        )


def flag(parser: argparse.ArgumentParser, name: str, **options: Any) -> None:
    """Adds a flag that may be typed with underscores or dashes, as those of the scripts may."""
    spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
    parser.add_argument(*spellings, dest=name, **options)


def count(text: str) -> int:
    """For `type`: a number from 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: a number from 0")
    return int(text)


def seconds(text: str) -> float:
    """For `type`: seconds, 0 among them."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: seconds from 0")
    return value


def some_seconds(text: str) -> float:
    """For `type`: seconds, more than 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"received {text!r}; accepted: seconds above 0")
    return value
