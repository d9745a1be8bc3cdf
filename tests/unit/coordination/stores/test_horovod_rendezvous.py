"""Horovod's rendezvous: the slots are those of its launcher, and a rank waits for the server."""

from __future__ import annotations

import dataclasses
import socket
import threading

import pytest
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

from tfdist.coordination.stores.horovod_rendezvous import (
    Slot,
    environment,
    serve_hosts,
    slots,
    wait_for_server,
)
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks(horovod=("2.15",)), pytest.mark.horovod]


@pytest.mark.parametrize(
    "layout",
    [{"a": 1}, {"a": 4}, {"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3, "c": 2}],
    ids=str,
)
def test_the_slots_equal_those_that_horovod_assigns(layout: dict[str, int]) -> None:
    hosts = ",".join(f"{host}:{count}" for host, count in layout.items())
    expected = get_host_assignments(parse_hosts(hosts), sum(layout.values()))

    assigned = slots([host for host, count in layout.items() for _ in range(count)])

    assert [dataclasses.asdict(slot) for slot in assigned] == [
        {
            "hostname": slot.hostname,
            "rank": slot.rank,
            "size": slot.size,
            "local_rank": slot.local_rank,
            "local_size": slot.local_size,
            "cross_rank": slot.cross_rank,
            "cross_size": slot.cross_size,
        }
        for slot in expected
    ]


def test_ranks_keep_their_order_if_the_hosts_alternate() -> None:
    hosts = ["a", "b", "a", "c", "b", "a"]
    alternating = slots(hosts)

    assert [(slot.hostname, slot.rank) for slot in alternating] == list(
        zip(hosts, range(6), strict=True)
    )
    # The other numbers are the same as with the hosts sorted.
    grouped = {(slot.hostname, slot.local_rank): slot for slot in slots(sorted(hosts))}
    for slot in alternating:
        assert dataclasses.replace(grouped[slot.hostname, slot.local_rank], rank=slot.rank) == slot


@pytest.mark.parametrize(
    ("host", "interface"),
    [
        ("127.0.0.1", {"HOROVOD_GLOO_IFACE": "lo"}),
        ("localhost", {"HOROVOD_GLOO_IFACE": "lo"}),
        ("::1", {"HOROVOD_GLOO_IFACE": "lo"}),
        ("10.0.0.1", {}),
        ("node1.example.org", {}),
    ],
)
def test_the_environment_contains_everything_that_hvd_init_reads(
    host: str, interface: dict[str, str]
) -> None:
    slot = Slot(
        hostname="b", rank=1, size=6, local_rank=2, local_size=3, cross_rank=4, cross_size=5
    )

    assert environment(slot, host, 2222) == {
        "HOROVOD_HOSTNAME": "b",
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "6",
        "HOROVOD_LOCAL_RANK": "2",
        "HOROVOD_LOCAL_SIZE": "3",
        "HOROVOD_CROSS_RANK": "4",
        "HOROVOD_CROSS_SIZE": "5",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "2222",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **interface,
    }


def test_a_rank_waits_for_the_server_and_not_for_the_startup_barrier_on_its_port() -> None:
    with hold_ports(1) as (port,):
        waiting = threading.Thread(target=wait_for_server, args=("127.0.0.1", port, 60.0))
        with socket.create_server(("127.0.0.1", port), reuse_port=True) as barrier:
            waiting.start()
            # The barrier closes a connection after a line that is not one of its messages.
            for _ in range(2):
                connection, _ = barrier.accept()
                with connection, connection.makefile("rb") as lines:
                    lines.readline()
        assert waiting.is_alive()
        with serve_hosts(["a"], "127.0.0.1", port, "token"):
            waiting.join(30.0)
            assert not waiting.is_alive()


def test_a_server_that_never_starts_is_an_error() -> None:
    slept: list[float] = []
    with hold_ports(1) as (port,), pytest.raises(TimeoutError) as raised:
        wait_for_server("127.0.0.1", port, 0.1, sleep=slept.append)
    assert slept
    assert str(raised.value) == (
        f"rank 0 does not serve Horovod's rendezvous at 127.0.0.1:{port} after 0.1 s"
    )
