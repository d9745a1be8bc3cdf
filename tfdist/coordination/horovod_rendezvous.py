"""Horovod's rendezvous over Gloo, without `horovodrun`.

    environ.update(environment(slots, rank=1, host="10.0.0.1", port=2222))
    with serve(slots, "10.0.0.1", 2222):      # in one process of the job
        ...

The variables and the server are those of Horovod 0.28's own launcher (`horovod.runner.gloo_run`).
The key-value server takes unauthenticated writes: bind it to loopback or to a trusted network.
"""

from __future__ import annotations

import fcntl
import ipaddress
import itertools
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from tfdist.coordination.startup import addresses as lint
from tfdist.errors import log

#: Which network interface Gloo uses.
INTERFACE_VARIABLE = "HOROVOD_GLOO_IFACE"

# netdevice(7): the address of an interface.
_SIOCGIFADDR = 0x8915
_REQUEST_SECONDS = 5.0
# Until the server sees that it is to end; the job waits for that.
_POLL_SECONDS = 0.05
# The store is one of the job's own tasks, for which no proxy is meant.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Slot:
    """One rank's place: its host, and its numbers in the job, on its host and across hosts."""

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def slots(hosts: Sequence[str]) -> tuple[Slot, ...]:
    """One slot a rank, ranks in the order of `hosts`; equal hosts share a machine.

    As in `horovod.runner.common.util.hosts.get_host_assignments`: `cross_rank` counts the hosts
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
    """The variables with which `hvd.init()` finds the rendezvous at `host:port` as `slot`."""
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
    """`environment` of a rank whose job has one rank for each of `hosts`."""
    return environment(slots(hosts)[rank], host, port)


def serve_hosts(hosts: Sequence[str], host: str, port: int) -> AbstractContextManager[int]:
    """`serve` for a job that has one rank for each of `hosts`."""
    return serve(slots(hosts), host, port)


def interface(host: str) -> str | None:
    """The network interface of this machine that has an IPv4 address of `host`; None for none.

    Gloo would take the one to which the machine's own name resolves, which often is loopback.
    """
    addresses = lint.resolve(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
            except OSError:
                continue  # It has no address.
            # A `struct ifreq`: sixteen bytes of the name, a family, a port, the address.
            if socket.inet_ntoa(answer[20:24]) in addresses:
                return name
    return None


@contextmanager
def serve(all_slots: Sequence[Slot], host: str, port: int) -> Iterator[int]:
    """Serves the rendezvous on `host` while the block runs; yields the port (0 picks a free one).

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
        target=server.serve_forever, args=[_POLL_SECONDS], name="rendezvous", daemon=True
    )
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def wait_for_ranks(
    host: str,
    port: int,
    rank: int,
    size: int,
    *,
    timeout: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when every rank has come to the rendezvous, in whatever order they start.

    Raises:
      TimeoutError: one has not come within `timeout` seconds.
    """
    until = time.monotonic() + timeout
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/tfdist"
    is_here = False
    missing = list(range(size))
    for attempt in itertools.count():
        try:
            if not is_here:
                request = urllib.request.Request(f"{url}/{rank}", data=b"here", method="PUT")
                _opener.open(request, timeout=5).close()
                is_here = True
            while missing:
                _opener.open(f"{url}/{missing[0]}", timeout=5).close()
                missing.pop(0)
            return
        except OSError:
            # Rank 0 does not serve yet, or the rank asked for has not come.
            waiting = f"rank {missing[0]}" if is_here else f"rank 0 at {host}:{port}"
            if time.monotonic() > until:
                raise TimeoutError(f"{waiting} has not come within {timeout:g} s") from None
            if attempt == 20:
                log(f"rank {rank} waits for {waiting}")
            sleep(0.25)


class KeyValueStore:
    """The key-value store that the rendezvous is, as a `tfdist.coordination.preemption.Board`."""

    def __init__(self, host: str, port: int) -> None:
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}/tfdist"

    def post(self, key: str, value: str) -> None:
        request = urllib.request.Request(f"{self._url}/{key}", value.encode(), method="PUT")
        _opener.open(request, timeout=_REQUEST_SECONDS).close()

    def read(self, key: str, seconds: float) -> str | None:
        until = time.monotonic() + seconds
        while True:
            try:
                with _opener.open(f"{self._url}/{key}", timeout=_REQUEST_SECONDS) as got:
                    return str(got.read().decode())
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.NOT_FOUND:
                    raise
            if time.monotonic() >= until:
                return None
            # The store has no way to wait for a key.
            time.sleep(min(0.5, max(0.0, until - time.monotonic())))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
