"""Moves this process into a network of its own, from which it reaches the job's other tasks.

    config = enter(config, token)

The process keeps its ID, so it receives signals and returns its exit code itself. A child process
stays in the network of the machine, listens on the task's port there, and carries the packets.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import select
import signal
import socket
import time
import traceback
from dataclasses import replace
from typing import NoReturn

from tfdist.cluster import Cluster, Task, host_and_port
from tfdist.cluster.config import ClusterConfig
from tfdist.coordination.listening import listen
from tfdist.coordination.seal import TOKEN_VARIABLE
from tfdist.errors import UsageError, refuse
from tfdist.tools.launch.isolation import isolate
from tfdist.tools.launch.signals import INTERRUPTIONS
from tfdist.tools.launch.tunnel.device import open_device

#: The addresses of the tasks in their own networks (RFC 2544: of no host on the Internet).
_NETWORK = ipaddress.IPv4Network("198.18.0.0/15")

_READY = b"r"
# After the end of the task, its last packets are carried: until there were none for some time.
_QUIET_SECONDS, _LONGEST_SECONDS = 0.5, 5.0


def enter(config: ClusterConfig, token: str) -> ClusterConfig:
    """Moves this process into the job's tunnel. It must have only one thread.

    Args:
      config: the cluster and this task, with addresses at which the machines reach each other.
      token: the job's token.

    Returns:
      The same with the addresses in the tunnel.

    Raises:
      UsageError: the job has no token, this task has no address, a package is missing, or the
        machine does not allow it.
      OSError: the task's port is in use.
    """
    _check(config, token)
    inside, outside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if not os.fork():
        inside.close()
        _serve(config, token, outside, parent)
    outside.close()
    with inside:
        answer = inside.recv(1 << 12)
        if answer != _READY:
            raise OSError(answer.decode() or "the process that carries the packets has ended")
        isolate("--tls")
        own = f"{_addresses(config.cluster)[config.task]}/{_NETWORK.prefixlen}"
        device = open_device(ipaddress.IPv4Interface(own))
        socket.send_fds(inside, [_READY], [device])
        os.close(device)
    return replace(config, cluster=_inside(config.cluster), source=f"{config.source} over TLS")


def _check(config: ClusterConfig, token: str) -> None:
    if not config.cluster or not config.task.kind.in_cluster:
        accepted = "a task with an address in a cluster"
        refuse({"tls": str(config)}, accepted, "Leave it out: this task needs no connections.")
    if not token:
        raise UsageError(
            TOKEN_VARIABLE,
            received="",
            accepted="with --tls, a random text that is the same in all tasks",
            remedy="Set it in the environment of each task, such as to the output of "
            "openssl rand -hex 16.",
        )
    if importlib.util.find_spec("cryptography") is None:
        remedy = "Run: pip install 'tfdist[tls]'"
        refuse({"tls": "no package cryptography"}, "with the package", remedy)


def _addresses(cluster: Cluster) -> dict[Task, ipaddress.IPv4Address]:
    """The addresses in the tunnel."""
    return {task: _NETWORK[number] for number, task in enumerate(cluster.tasks(), 1)}


def _inside(cluster: Cluster) -> Cluster:
    """The cluster with the addresses in the tunnel; each task keeps its port."""
    addresses: dict[str, list[str]] = {}
    for task, address in _addresses(cluster).items():
        port = host_and_port(cluster.address(task))[1]
        addresses.setdefault(task.type, []).append(f"{address}:{port}")
    return Cluster(**{job: tuple(found) for job, found in addresses.items()})


def _serve(config: ClusterConfig, token: str, channel: socket.socket, task: int) -> NoReturn:
    """Carries the packets of the process `task` until `task` ends; then ends this process."""
    # A pipe to which the task writes must be closed when the task ends.
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    # A signal to the group ends the task, and this process ends after it.
    for number in (*INTERRUPTIONS, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    try:
        ended = os.pidfd_open(task)
        _carry(config, token, channel, ended)
    except OSError as error:
        channel.send(str(error).encode())
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


def _carry(config: ClusterConfig, token: str, channel: socket.socket, ended: int) -> None:
    # These modules import `cryptography`, which is optional.
    from tfdist.tools.launch.tunnel.certificates import contexts
    from tfdist.tools.launch.tunnel.links import Links, Peer

    addresses = _addresses(config.cluster)
    peers: dict[bytes, Peer] = {}
    for task, address in addresses.items():
        host, port = host_and_port(config.cluster.address(task))
        # The name in a certificate must be a valid host name.
        peers[address.packed] = Peer(f"{task.type}-{task.index}", host, port, address.packed)
    own = peers.pop(addresses[config.task].packed)
    own_contexts = contexts(token, own.name)
    listener = listener_at(own.port)
    channel.send(_READY)
    _, devices, _, _ = socket.recv_fds(channel, len(_READY), 1)
    if not devices:
        return  # The task could not make its network, and has said why.
    links = Links(devices[0], listener, own.address, peers, own_contexts)
    links.start()
    channel.close()
    select.select([ended], [], [])
    # The task may be started again at once.
    links.stop_listening()
    latest = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < min(latest, links.last_packet + _QUIET_SECONDS):
        time.sleep(_QUIET_SECONDS / 10)


def listener_at(port: int) -> socket.socket:
    """A socket that listens on all addresses of the machine.

    The machine may not have the address by which the others reach it.

    Raises:
      OSError: the port is in use.
    """
    try:
        return listen(port, backlog=128)
    except OSError as error:
        raise OSError(f"port {port}: {os.strerror(error.errno or 0)}") from None
