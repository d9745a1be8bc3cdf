"""Lets only the cluster's machines take part in the startup of a job without a token.

origins = Origins(cluster, resolver, log)
if await origins.admits(writer, hello):
    ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any

from tfdist.cluster import Cluster, host_and_port
from tfdist.coordination.seal import TOKEN_VARIABLE
from tfdist.coordination.startup.addresses import is_among, plain, resolve
from tfdist.coordination.startup.protocol import Hello, OtherCluster


class Origins:
    """The machines from which the tasks of a job connect.

    Args:
      cluster: the tasks.
      resolver: the threads that look up names.
      log: logs a line.
    """

    def __init__(self, cluster: Cluster, resolver: Executor, log: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._resolver = resolver
        self._log = log
        self._known: dict[str, frozenset[str]] = {}
        self._refused: set[str] = set()

    async def admits(self, origin: Sequence[Any], message: Hello | OtherCluster) -> bool:
        """Whether a connection comes from an address of the cluster; logs each one that does not.

        Args:
          origin: the socket address of the other side.
          message: its first message. If it names a task, only the address of the task is looked up.
        """
        ip = plain(str(origin[0]))
        for tasks in ([message.task] if isinstance(message, Hello) else [], self._cluster.tasks()):
            if await self._is_of(ip, [self._cluster.address(task) for task in tasks]):
                return True
        if ip not in self._refused:
            self._refused.add(ip)
            self._log(
                f"ignoring a task at {ip}, which is no address of this job; if it is of this "
                f"job, set {TOKEN_VARIABLE} to the same random text in all tasks"
            )
        return False

    async def _is_of(self, ip: str, addresses: Iterable[str]) -> bool:
        hosts = list(dict.fromkeys(host_and_port(address)[0] for address in addresses))
        found = await asyncio.gather(*map(self._addresses, hosts))
        return is_among(ip, frozenset().union(*found))

    async def _addresses(self, host: str) -> frozenset[str]:
        if host not in self._known:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._resolver, resolve, host)
            if not found:
                return found
            self._known[host] = found
        return self._known[host]
