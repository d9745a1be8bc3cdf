"""The hosts of a job, from a flag or a file.

hosts_of("a,b:2,c")                  # Host("a", 1), Host("b", 2), Host("c", 1)
hosts_in("hosts.txt")                # a line each: host, host:N, or host slots=N
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tfdist.errors import UsageError
from tfdist.process.paths import local_path
from tfdist.tools.launch.host_discovery import Host, parse

_SLOTS = re.compile(r"^(\S+)\s+slots\s*=\s*(\d+)(\s.*)?$")


def hosts_of(text: str) -> tuple[Host, ...]:
    """The hosts of `--hosts`, in order.

    Raises:
      UsageError: it lists no host, or something else than hosts.
    """
    return _in_order("--hosts", text, [part.strip() for part in text.split(",")])


def hosts_in(path: str) -> tuple[Host, ...]:
    """The hosts of `--hostfile`, in order, as Open MPI or `horovodrun` writes it.

    Raises:
      UsageError: the file cannot be read, or lists no host.
    """
    file = local_path("--hostfile", path)
    try:
        lines = file.read_text().splitlines()
    except (OSError, ValueError) as error:  # ValueError: it is no text.
        raise UsageError(
            "--hostfile",
            received=path,
            accepted="a file with a host in each line",
            remedy=f"Correct the path or the file: {getattr(error, 'strerror', error)}.",
        ) from None
    return _in_order("--hostfile", path, [_SLOTS.sub(r"\1:\2", line.strip()) for line in lines])


def _in_order(field: str, received: str, lines: Iterable[str]) -> tuple[Host, ...]:
    try:
        found = [host for line in lines for host in parse([line])]
        if not found or len({host.name for host in found}) < len(found):
            raise ValueError("it lists no host" if not found else "a host is listed twice")
    except ValueError as error:
        raise UsageError(
            field,
            received=received,
            accepted="hosts with their numbers of tasks: a,b:2 (in a file also b slots=2)",
            remedy=f"Correct it: {error}.",
        ) from None
    return tuple(found)
