"""Ports that all tasks of a job compute alike, without asking each other.

    ports_of(["n1", "n1", "n2"], "17")     # [10512, 10513, 10512]

The ports lie below those that Linux gives to outgoing connections (from 32768), and jobs whose
numbers follow each other have ports that lie apart.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Sequence

from tfdist.cluster.numbers import is_number
from tfdist.errors import UsageError

_FIRST, _END = 10240, 32768
_STRIDE = 16


def ports_of(hosts: Sequence[str], job: str, first: int | None = None) -> list[int]:
    """The port of each rank: consecutive ports for the ranks of a host.

    Args:
      hosts: the host of each rank.
      job: the number of the job, or another text that distinguishes it.
      first: the first port of each host; None to compute it from the job.

    Raises:
      UsageError: a host has more ranks than there are ports.
    """
    most = max(Counter(hosts).values(), default=1)
    if most > _END - _FIRST:
        raise UsageError(
            "tasks",
            received=f"{most} on one host",
            accepted=f"at most {_END - _FIRST}",
            remedy="Start fewer tasks on each host.",
        )
    if first is None:
        # A power of two, so that a larger stride divides the same range.
        stride = _STRIDE
        while stride < most:
            stride *= 2
        number = int(job) if is_number(job) else zlib.crc32(os.fsencode(job))
        first = _FIRST + number % ((_END - _FIRST) // stride) * stride
    seen: Counter[str] = Counter()
    ports = []
    for host in hosts:
        ports.append(first + seen[host])
        seen[host] += 1
    return ports


def first_of(text: str) -> int | None:
    """The first port of reserved ones, `12000-12007`; None if there is none."""
    first = text.partition("-")[0].partition(",")[0].strip()
    return int(first) if is_number(first) else None
