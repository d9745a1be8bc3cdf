"""Horovod's rendezvous over Gloo, without `horovodrun`.

    with serve_hosts(["10.0.0.1", "10.0.0.2"], "10.0.0.1", 2222):    # in one process of the job
        ...
    wait_for_server("10.0.0.1", 2222, timeout=300.0)                 # in the other ranks
    os.environ.update(environment_of(["10.0.0.1", "10.0.0.2"], 1, "10.0.0.1", 2222))
    hvd.init()

Ranks exchange their addresses in a key-value store, which the rendezvous server provides. The
environment variables and the server are those of Horovod 0.28's launcher
(`horovod.runner.gloo_run`). The server accepts unauthenticated writes: bind it to loopback or to a
trusted network.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from tfdist.cluster.interfaces import interfaces
from tfdist.coordination.kv_store import RendezvousStore
from tfdist.coordination.startup.addresses import resolve

#: The environment variable that names the network interface for Gloo.
INTERFACE_VARIABLE = "HOROVOD_GLOO_IFACE"

# The job waits for the server's shutdown, which takes up to this time.
_SHUTDOWN_POLL_SECONDS = 0.05
_CONNECT_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Slot:
    """The place of a rank: its host, and its number in the job, on its host and across hosts."""

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def slots(hosts: Sequence[str]) -> tuple[Slot, ...]:
    """Assigns a slot to each rank, in the order of `hosts`; equal hosts are one machine.

    As `horovod.runner.common.util.hosts.get_host_assignments` does: `cross_rank` counts the hosts
    that have a slot of the same local rank.
    """
    distinct = list(dict.fromkeys(hosts))
    result = []
    for rank, host in enumerate(hosts):
        local_rank = hosts[:rank].count(host)
        peers = [name for name in distinct if hosts.count(name) > local_rank]
        result.append(
            Slot(
                host=host,
                rank=rank,
                size=len(hosts),
                local_rank=local_rank,
                local_size=hosts.count(host),
                cross_rank=peers.index(host),
                cross_size=len(peers),
            )
        )
    return tuple(result)


def environment(slot: Slot, host: str, port: int) -> dict[str, str]:
    """The variables with which `hvd.init()` joins the rendezvous at `host:port` as `slot`."""
    variables = {
        "HOROVOD_HOSTNAME": slot.host,
        "HOROVOD_RANK": str(slot.rank),
        "HOROVOD_SIZE": str(slot.size),
        "HOROVOD_LOCAL_RANK": str(slot.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot.local_size),
        "HOROVOD_CROSS_RANK": str(slot.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot.cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if _is_loopback(host):
        variables[INTERFACE_VARIABLE] = "lo"
    elif name := interface(slot.host):
        variables[INTERFACE_VARIABLE] = name
    return variables


def environment_of(hosts: Sequence[str], rank: int, host: str, port: int) -> dict[str, str]:
    """`environment` for a rank of a job with one rank on each of `hosts`."""
    return environment(slots(hosts)[rank], host, port)


def serve_hosts(hosts: Sequence[str], host: str, port: int) -> AbstractContextManager[int]:
    """`serve` for a job with one rank on each of `hosts`."""
    return serve(slots(hosts), host, port)


def interface(host: str) -> str | None:
    """The network interface of this machine that has an IPv4 address of `host`, or None.

    By default Gloo uses the interface that the machine's name resolves to, often loopback.
    """
    addresses = resolve(host)
    return next((name for name, own in interfaces().items() if str(own.ip) in addresses), None)


@contextmanager
def serve(all_slots: Sequence[Slot], host: str, port: int) -> Iterator[int]:
    """Serves the rendezvous on `host` while the block runs; yields the port.

    Args:
      all_slots: the slots of the job.
      host: the address to listen on.
      port: the port; 0 for any free one.

    Raises:
      ModuleNotFoundError: Horovod is not installed.
      OSError: the port cannot be bound.
    """
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((host, port), RendezvousHandler, 0)
    server.init(
        [
            SlotInfo(
                hostname=slot.host,
                rank=slot.rank,
                local_rank=slot.local_rank,
                cross_rank=slot.cross_rank,
                size=slot.size,
                local_size=slot.local_size,
                cross_size=slot.cross_size,
            )
            for slot in all_slots
        ]
    )
    thread = threading.Thread(
        target=server.serve_forever, args=[_SHUTDOWN_POLL_SECONDS], name="rendezvous", daemon=True
    )
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def wait_for_server(
    host: str, port: int, timeout: float, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Waits until the rendezvous is served at `host:port`.

    A connection alone is no proof: the startup barrier of rank 0 has used the same port.

    Raises:
      TimeoutError: it is not served within `timeout` seconds.
    """
    store = RendezvousStore(host, port)
    deadline = time.monotonic() + timeout
    while True:
        try:
            store.get("any", seconds=0.0)  # Any answer will do; the key does not exist.
            return
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"rank 0 does not serve Horovod's rendezvous at {host}:{port} after "
                    f"{timeout:g} s"
                ) from None
            sleep(_CONNECT_POLL_SECONDS)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
