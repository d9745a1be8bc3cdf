"""The hosts of a job, from a flag or a file.

hosts_of("a,b:2,c")                  # Host("a", 1), Host("b", 2), Host("c", 1)
hosts_in("hosts.txt")                # a line each: host, host:N, or host slots=N
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tfdist.errors import os_error_is_usage_error, refuse
from tfdist.process.paths import local_path
from tfdist.tools.launch.host_discovery import Host, parse

_SLOTS = re.compile(r"^(\S+)\s+slots\s*=\s*(\d+)(\s.*)?$")


def hosts_of(text: str) -> tuple[Host, ...]:
    """The hosts of `--hosts`, in order.

    Raises:
      UsageError: it lists no host, or something else than hosts.
    """
    return _in_order("hosts", text, [part.strip() for part in text.split(",")])


def hosts_in(path: str) -> tuple[Host, ...]:
    """The hosts of `--hostfile`, in order; the file has the format of Open MPI or `horovodrun`.

    Raises:
      UsageError: the file cannot be read, or lists no host.
    """
    file = local_path("--hostfile", path)
    with os_error_is_usage_error("--hostfile", path, "a file with a host in each line"):
        lines = file.read_text().splitlines()
    return _in_order("hostfile", path, [_SLOTS.sub(r"\1:\2", line.strip()) for line in lines])


def _in_order(name: str, received: str, lines: Iterable[str]) -> tuple[Host, ...]:
    try:
        found = parse(lines)
        if not found:
            raise ValueError("it lists no host")
    except ValueError as error:
        accepted = "hosts with their numbers of tasks: a,b:2 (in a file also b slots=2)"
        refuse({name: received}, accepted, f"Correct it: {error}.")
    return found
