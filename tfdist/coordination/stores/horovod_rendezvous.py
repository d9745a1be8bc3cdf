"""Horovod's rendezvous over Gloo, without `horovodrun`.

    with serve_hosts(["10.0.0.1", "10.0.0.2"], "10.0.0.1", 2222, token):    # in one process
        ...
    wait_for_server("10.0.0.1", 2222, timeout=300.0)                 # in the other ranks
    os.environ.update(environment_of(["10.0.0.1", "10.0.0.2"], 1, "10.0.0.1", 2222))
    hvd.init()

Ranks exchange their addresses in a key-value store, which the rendezvous server provides. The
environment variables are those of Horovod 0.28's launcher (`horovod.runner.gloo_run`).
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress

from tfdist.cluster.interfaces import interfaces
from tfdist.coordination.startup.addresses import is_loopback, resolve
from tfdist.coordination.stores.kv_store import RendezvousStore
from tfdist.coordination.stores.rendezvous_server import serve_store
from tfdist.process.deadline import wait_until

#: The environment variable that names the network interface for Gloo.
INTERFACE_VARIABLE = "HOROVOD_GLOO_IFACE"

_CONNECT_POLL_SECONDS = 0.1


def environment_of(hosts: Sequence[str], rank: int, host: str, port: int) -> dict[str, str]:
    """The variables with which `hvd.init()` joins the rendezvous at `host:port`.

    The numbers are those of `horovod.runner.common.util.hosts.get_host_assignments`.

    Args:
      hosts: the host of each rank; equal hosts are one machine.
      rank: the rank of this process.
      host: where the rendezvous is served.
      port: the port there.
    """
    own, local_rank = hosts[rank], hosts[:rank].count(hosts[rank])
    # The hosts that have a rank with the same local rank.
    peers = [name for name in dict.fromkeys(hosts) if hosts.count(name) > local_rank]
    variables = {
        "HOROVOD_HOSTNAME": own,
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(len(hosts)),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(hosts.count(own)),
        "HOROVOD_CROSS_RANK": str(peers.index(own)),
        "HOROVOD_CROSS_SIZE": str(len(peers)),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if is_loopback(host):
        variables[INTERFACE_VARIABLE] = "lo"
    elif name := interface(own):
        variables[INTERFACE_VARIABLE] = name
    return variables


def serve_hosts(
    hosts: Sequence[str], host: str, port: int, token: str
) -> AbstractContextManager[int]:
    """Serves the rendezvous of a job with one rank on each of `hosts`; yields the port.

    Args:
      hosts: the host of each rank.
      host: the address to listen on.
      port: the port; 0 for any free one.
      token: the job's token.

    Raises:
      ModuleNotFoundError: Horovod is not installed.
      OSError: the port cannot be bound.
    """
    importlib.import_module("horovod")
    return serve_store(host, port, _sizes(hosts), token)


def _sizes(hosts: Sequence[str]) -> dict[str, int]:
    """The number of ranks of each of Gloo's scopes."""
    ranks = Counter(hosts)
    sizes = {"global": len(hosts), **{f"local_{host}": count for host, count in ranks.items()}}
    for local_rank in range(max(ranks.values())):
        sizes[f"cross_{local_rank}"] = sum(count > local_rank for count in ranks.values())
    return sizes


def interface(host: str) -> str | None:
    """The network interface of this machine that has an IPv4 address of `host`, or None.

    By default Gloo uses the interface that the machine's name resolves to, often loopback.
    """
    addresses = resolve(host)
    return next((name for name, own in interfaces().items() if str(own.ip) in addresses), None)


def wait_for_server(host: str, port: int, timeout: float) -> None:
    """Waits until the rendezvous is served at `host:port`.

    A connection alone is no proof: the startup barrier of rank 0 has used the same port.

    Raises:
      TimeoutError: it is not served within `timeout` seconds.
    """
    store = RendezvousStore(host, port, token="")

    def answers() -> bool:
        with suppress(OSError):
            store.get("any", seconds=0.0)  # Any answer will do.
            return True
        return False

    if not wait_until(answers, timeout, pause=_CONNECT_POLL_SECONDS):
        raise TimeoutError(
            f"rank 0 does not serve Horovod's rendezvous at {host}:{port} after {timeout:g} s"
        )
