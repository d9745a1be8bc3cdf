"""Simulates several machines on this one with network namespaces.

    with machines(2) as (first, second):
        [*first.enter, "ping", second.address]

Each machine is a network namespace with one interface; a bridge connects them. Needs root.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A network namespace: its name and its address."""

    name: str
    address: str

    @property
    def enter(self) -> list[str]:
        """The prefix of a command that runs there."""
        return ["ip", "netns", "exec", self.name]

    @property
    def enter_as_host(self) -> list[str]:
        """As `enter`, and the machine has a host name of its own, as Open MPI needs."""
        named = f'hostname {self.name} && exec "$@"'
        return [*self.enter, "unshare", "--uts", "sh", "-c", named, "sh"]


@contextmanager
def machines(
    count: int, rate: str | None = None, burst: str = "32kbit"
) -> Iterator[Sequence[Machine]]:
    """Machines, each with one interface `eth0`, on an isolated network.

    Args:
      count: the number of machines.
      rate: the bandwidth limit of each machine, such as `20mbit`.
      burst: what a machine may send at once. With less than `rate` divided by the frequency of the
        kernel's clock, it does not reach the rate, and needs much CPU time.
    """
    mark = uuid.uuid4().hex[:6]
    hub = f"hub-{mark}"
    found = [Machine(f"machine-{mark}-{n}", f"10.99.0.{n + 1}") for n in range(count)]
    with ExitStack() as stack:
        for name in (hub, *(machine.name for machine in found)):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for n, machine in enumerate(found):
            there = ("peer", "name", "eth0", "netns", machine.name)
            _ip("-n", hub, "link", "add", f"port{n}", "type", "veth", *there)
            _ip("-n", hub, "link", "set", f"port{n}", "master", "bridge", "up")
            _ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", "eth0")
            for interface in ("lo", "eth0"):
                _ip("-n", machine.name, "link", "set", interface, "up")
            if rate is not None:
                limit = ["tbf", "rate", rate, "burst", burst, "latency", "400ms"]
                queue = ["tc", "qdisc", "add", "dev", "eth0", "root", *limit]
                subprocess.run([*machine.enter, *queue], check=True)
        yield found


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
