"""Computes which node runs which task of a Slurm step.

    nodes_of("n[1-2,10]")                       # ["n1", "n2", "n10"]
    counts_of("2(x2),1")                        # [2, 2, 1]
    ranks_of(Layout("cyclic"), nodes, counts)   # the node of each task: n1, n2, n10, n1, n2

The syntax is that of `scontrol show hostnames` and of SLURM_TASKS_PER_NODE; the distributions are
those of `srun --distribution`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.numbers import MOST_TASKS, number_in
from tfdist.errors import UsageError, os_error_is_usage_error

# What is between commas that are outside brackets.
_PART = re.compile(r"(?:\[[^\[\]]*\]|[^,\[\]])+")
_COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")
#: What to do about variables that Slurm has not set so.
REMEDY = "Start the script with srun."
_DISTRIBUTIONS = ("block", "cyclic", "plane", "arbitrary")


@dataclass(frozen=True)
class Layout:
    """How a step distributes its tasks over its nodes.

    Attributes:
      distribution: `block`, `cyclic`, `plane` or `arbitrary`.
      plane_size: the tasks of a block of `plane`.
      listed: under `arbitrary`, the node of each task.
    """

    distribution: str
    plane_size: int = 1
    listed: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Layout:
        """The layout that the variables of a step describe.

        Raises:
          UsageError: it is unknown.
        """
        text = environ.get("SLURM_DISTRIBUTION", "")
        # The parts after the first are the distribution over sockets and cores. Slurm's default is
        # cyclic for one task a node, which is the same as in blocks, and in blocks for several.
        name = re.split(r"[:,=]", text)[0].lower() or "block"
        if name not in _DISTRIBUTIONS:
            raise UsageError.choice("SLURM_DISTRIBUTION", text, _DISTRIBUTIONS)
        size = 1
        if environ.get("SLURM_DIST_PLANESIZE"):
            size = number_in(environ, "SLURM_DIST_PLANESIZE", remedy=REMEDY, least=1)
        listed = _read(environ.get("SLURM_HOSTFILE", "")) if name == "arbitrary" else ()
        return cls(name, size, listed)


def ranks_of(layout: Layout, nodes: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The node of each task.

    Args:
      layout: how the tasks are distributed.
      nodes: the nodes of the step.
      counts: the number of tasks of each node.
    """
    if layout.listed:
        return list(layout.listed)
    left = list(counts)
    size = {"cyclic": 1, "plane": layout.plane_size}.get(layout.distribution, max(left, default=1))
    ranks = []
    while any(left):
        for index, node in enumerate(nodes):
            taken = min(size, left[index])
            left[index] -= taken
            ranks += [node] * taken
    return ranks


def counts_of(text: str) -> list[int]:
    """The numbers of `2(x3),1`: 2, 2, 2, 1.

    Raises:
      UsageError: it is something else.
    """
    counts: list[int] = []
    tasks = 0
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is not None:
            tasks += int(match[1]) * int(match[2] or 1)
        if match is None or max(tasks, len(counts) + int(match[2] or 1)) > MOST_TASKS:
            raise UsageError(
                "SLURM_STEP_TASKS_PER_NODE",
                received=text,
                accepted="numbers of tasks, such as 2(x3),1",
                remedy=REMEDY,
            )
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def nodes_of(text: str) -> list[str]:
    """The names of a node list, `n[1-2,10],m3`, also with several brackets.

    Raises:
      UsageError: it is no node list.
    """
    names: list[str] = []
    parts = _PART.findall(text)
    if ",".join(parts) != text:
        raise _error(text)
    for part in parts:
        # Text and the content of brackets alternate.
        choices = [
            [piece] if index % 2 == 0 else list(_range(piece, text))
            for index, piece in enumerate(re.split(r"[\[\]]", part))
        ]
        if len(names) + math.prod(map(len, choices)) > MOST_TASKS:
            raise _error(text)
        names += map("".join, itertools.product(*choices))
    return names


def _read(path: str) -> tuple[str, ...]:
    """The nodes of `SLURM_HOSTFILE`, a line for each task."""
    remedy = "Put it on a file system that the nodes share."
    with os_error_is_usage_error("SLURM_HOSTFILE", path, "a file that each task can read", remedy):
        lines = Path(path).read_text().splitlines()
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def _range(content: str, text: str) -> Iterator[str]:
    for part in content.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if match is None:
            raise _error(text)
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) > MOST_TASKS:
            raise _error(text)
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def _error(text: str) -> UsageError:
    return UsageError(
        "SLURM_STEP_NODELIST",
        received=text,
        accepted="a list of nodes, such as n[1-2,10]",
        remedy=REMEDY,
    )
