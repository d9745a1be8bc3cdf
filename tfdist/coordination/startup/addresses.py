"""Checks the addresses and the port of a task without connecting to any other task.

check_addresses(cluster)                 # two tasks at one address, loopback among machines
check_port(cluster, task)                # another process has this task's port
listener = open_port(cluster, task)      # listens on it, as TensorFlow will
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from tfdist.cluster import Cluster, Task, host_and_port
from tfdist.coordination.listening import listen
from tfdist.coordination.probe import Listener, identify
from tfdist.errors import UsageError

#: Connections that wait to be accepted; the kernel may have a lower limit.
BACKLOG = 4096
# A name that takes longer is looked up again at the startup barrier.
_RESOLVE_SECONDS = 2.0


def resolve(host: str) -> frozenset[str]:
    """The IP addresses of a host, without duplicates; none if its name does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return frozenset()
    return frozenset(plain(str(sockaddr[0])) for *_, sockaddr in found)


def is_of_this_machine(address: str) -> bool:
    """Whether an IP address is one of this machine's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return True
    except OSError:
        return False


def check_addresses(cluster: Cluster) -> None:
    """Checks the addresses of the tasks against each other.

    Names that do not resolve within two seconds are left to the startup barrier.

    Raises:
      UsageError: two tasks have the same address under different names; or a task has a loopback
        address although another task is on another machine, for which it means that machine itself.
    """
    tasks = cluster.tasks()
    places = {task: host_and_port(cluster.address(task)) for task in tasks}
    resolved = _resolve_all({host for host, _ in places.values()})
    owners: dict[tuple[str, int], Task] = {}
    for task, (host, port) in places.items():
        for ip in sorted(resolved[host]):
            owner = owners.setdefault((ip, port), task)
            if owner != task:
                raise UsageError(
                    f"address of {task}",
                    received=cluster.address(task),
                    accepted="an address that no other task has",
                    remedy=f"{owner} has it already, as {cluster.address(owner)}: give each task "
                    "its own port.",
                )
    loopback = [task for task, (host, _) in places.items() if is_loopback(host)]
    if not loopback:
        return
    for task, (host, _) in places.items():
        if task in loopback or not resolved[host]:
            continue
        if not any(map(is_of_this_machine, resolved[host])):
            raise UsageError(
                f"address of {loopback[0]}",
                received=cluster.address(loopback[0]),
                accepted=f"an address that other machines reach: {task} is at "
                f"{cluster.address(task)}",
                remedy="Give the machine's own name or address: a loopback address means each "
                "machine itself.",
            )


def check_port(cluster: Cluster, task: Task) -> None:
    """Refuses a port that another process listens on; TensorFlow would only log the conflict.

    Accepts a port that another task has opened for the barrier, which explains the conflict better.

    Raises:
      UsageError: the port of `task` cannot be bound.
    """
    try:
        open_port(cluster, task).close()
    except UsageError:
        if identify(cluster.address(task)) is not Listener.BARRIER:
            raise


class ListeningSocket(socket.socket):
    """A socket that can close all connections that it has accepted.

    Args:
      listener: the socket that listens, in whose place this one is used from now on.
    """

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(fileno=listener.detach())
        self._accepted: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self._accepted.add(connection)
        return connection, address

    def close_accepted(self) -> None:
        """Closes the accepted connections that are still open."""
        for connection in list(self._accepted):
            connection.close()


def open_port(cluster: Cluster, task: Task) -> ListeningSocket:
    """A socket that listens on the port of `task`, on all interfaces, as TensorFlow will.

    Raises:
      UsageError: the port cannot be bound.
    """
    _, port = host_and_port(cluster.address(task))
    try:
        return ListeningSocket(listen(port, BACKLOG))
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        raise UsageError(
            f"address of {task}",
            received=cluster.address(task),
            accepted="a port that this process may bind",
            remedy=f"{os.strerror(error.errno)}: choose another port, or end the process that uses "
            "it.",
        ) from None


def _resolve_all(hosts: set[str]) -> dict[str, frozenset[str]]:
    pool = ThreadPoolExecutor(max_workers=32)
    lookups = {host: pool.submit(resolve, host) for host in hosts}
    wait(lookups.values(), timeout=_RESOLVE_SECONDS)
    pool.shutdown(wait=False, cancel_futures=True)
    return {
        host: lookup.result() if lookup.done() and not lookup.cancelled() else frozenset()
        for host, lookup in lookups.items()
    }


def plain(address: str) -> str:
    """`::ffff:10.0.0.1` as `10.0.0.1`: the same address in two notations."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped or ip)


def is_loopback(host: str) -> bool:
    """Whether a host is a loopback address, which on each machine means that machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_among(ip: str, known: frozenset[str]) -> bool:
    """Whether a connection from `ip` comes from a machine with one of the known addresses."""
    # The kernel connects from 127.0.0.1 to the other addresses of the loopback network.
    return ip in known or (is_loopback(ip) and any(map(is_loopback, known)))
