"""Computes which node runs which task of a Slurm step.

    nodes_of("n[1-2,10]")                 # ["n1", "n2", "n10"]
    counts_of("2(x2),1")                  # [2, 2, 1]
    ranks_of(CYCLIC, nodes, counts)       # the node of each task: n1, n2, n10, n1, n2

The syntax is that of `scontrol show hostnames` and of SLURM_TASKS_PER_NODE; the distributions are
those of `srun --distribution`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence

from tfdist.cluster.numbers import MOST_TASKS
from tfdist.errors import UsageError

# What is between commas that are outside brackets.
_PART = re.compile(r"(?:\[[^\[\]]*\]|[^,\[\]])+")
_COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")
_REMEDY = "Start the script with srun."

#: The distributions whose order of tasks is known.
BLOCK, CYCLIC = "block", "cyclic"


def distribution_of(text: str) -> str:
    """The distribution over the nodes in `SLURM_DISTRIBUTION`, `BLOCK` or `CYCLIC`.

    Raises:
      UsageError: it is another one.
    """
    # The parts after the first are the distribution over sockets and cores. Slurm's default is
    # cyclic for one task a node, which is the same as in blocks, and in blocks for several.
    name = re.split(r"[:,=]", text)[0].lower() or BLOCK
    if name not in (BLOCK, CYCLIC):
        raise UsageError.choice("SLURM_DISTRIBUTION", text, (BLOCK, CYCLIC))
    return name


def ranks_of(distribution: str, nodes: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The node of each task.

    Args:
      distribution: `BLOCK` or `CYCLIC`.
      nodes: the nodes of the step.
      counts: the number of tasks of each node.
    """
    blocks = [[node] * count for node, count in zip(nodes, counts, strict=True)]
    if distribution == BLOCK:
        return [*itertools.chain(*blocks)]
    rounds = itertools.zip_longest(*blocks)
    return [node for each in rounds for node in each if node is not None]


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
                remedy=_REMEDY,
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
        remedy=_REMEDY,
    )
