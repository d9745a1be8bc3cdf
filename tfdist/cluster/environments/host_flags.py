"""`--job_name`, `--task_index` and `--*_hosts`."""

from __future__ import annotations

import re

from tfdist.cluster import task_types
from tfdist.cluster.config import ClusterConfig, ClusterFlags, checked
from tfdist.cluster.environments.base import Environment


class Flags(Environment):
    """The flags of the script."""

    name = "flags"

    def config(self) -> ClusterConfig | None:
        return from_flags(self.flags)


def from_flags(flags: ClusterFlags) -> ClusterConfig | None:
    """Reads `--job_name`, `--task_index` and `--*_hosts`; None if none of them was given."""
    if not flags:
        return None
    given = {name: flags.get(f"{name}_hosts") for name in task_types.in_cluster()}
    hosts = {n: [host.strip() for host in text.split(",")] for n, text in given.items() if text}

    def flag_of(name: str) -> str:
        name = re.sub(r"^cluster\.(\w+)", r"--\1_hosts", name)
        return {"task.type": "--job_name", "task.index": "--task_index"}.get(name, name)

    return checked("flags", flag_of, hosts, flags.get("job_name"), flags.get("task_index"))
