"""`--job_name`, `--task_index` and `--*_hosts`."""

from __future__ import annotations

import re

from tfdist.cluster import task_types
from tfdist.cluster.config import ClusterConfig, ClusterFlags, checked
from tfdist.cluster.environments.base import Environment


class Flags(Environment):
    """The flags of the script."""

    name = "flags"
    order = 0

    def config(self) -> ClusterConfig | None:
        return from_flags(self.flags)


def from_flags(flags: ClusterFlags) -> ClusterConfig | None:
    """Reads `--job_name`, `--task_index` and `--*_hosts`; None if none of them was given."""
    if not flags:
        return None
    hosts = {name: _split_hosts(flags.get(f"{name}_hosts")) for name in task_types.in_cluster()}

    def flag_of(name: str) -> str:
        name = re.sub(r"^cluster\.(\w+)", r"--\1_hosts", name)
        return {"task.type": "--job_name", "task.index": "--task_index"}.get(name, name)

    return checked("flags", flag_of, hosts, flags.get("job_name"), flags.get("task_index"))


def _split_hosts(hosts: str | None) -> tuple[str, ...]:
    return tuple(host.strip() for host in hosts.split(",")) if hosts else ()
