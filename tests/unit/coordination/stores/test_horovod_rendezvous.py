"""Horovod's rendezvous: the slots are those of its launcher, and a rank waits for the server."""

from __future__ import annotations

import socket
import threading

import pytest
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts

from tfdist.coordination.stores.horovod_rendezvous import (
    environment_of,
    serve_hosts,
    wait_for_server,
)
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks(horovod=("2.15",)), pytest.mark.horovod]

PLACE = ("HOSTNAME", "RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


def slot(hosts: list[str], rank: int) -> dict[str, str]:
    """The variables that tell a rank its place in the job."""
    variables = environment_of(hosts, rank, "127.0.0.1", 2222)
    return {name: variables[f"HOROVOD_{name}"] for name in PLACE}


@pytest.mark.parametrize(
    "layout",
    [{"a": 1}, {"a": 4}, {"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3, "c": 2}],
    ids=str,
)
def test_the_slots_equal_those_that_horovod_assigns(layout: dict[str, int]) -> None:
    hosts = ",".join(f"{host}:{count}" for host, count in layout.items())
    expected = get_host_assignments(parse_hosts(hosts), sum(layout.values()))

    hosts_of_ranks = [host for host, count in layout.items() for _ in range(count)]
    for rank, own in enumerate(expected):
        assert slot(hosts_of_ranks, rank) == {
            "HOSTNAME": own.hostname,
            "RANK": str(own.rank),
            "SIZE": str(own.size),
            "LOCAL_RANK": str(own.local_rank),
            "LOCAL_SIZE": str(own.local_size),
            "CROSS_RANK": str(own.cross_rank),
            "CROSS_SIZE": str(own.cross_size),
        }


def test_ranks_keep_their_order_if_the_hosts_alternate() -> None:
    hosts = ["a", "b", "a", "c", "b", "a"]
    alternating = [slot(hosts, rank) for rank in range(6)]

    assert [own["HOSTNAME"] for own in alternating] == hosts
    assert [own["RANK"] for own in alternating] == list("012345")
    # The other numbers are the same as with the hosts sorted.
    in_order = [slot(sorted(hosts), rank) for rank in range(6)]
    grouped = {(own["HOSTNAME"], own["LOCAL_RANK"]): own for own in in_order}
    for own in alternating:
        assert {**grouped[own["HOSTNAME"], own["LOCAL_RANK"]], "RANK": own["RANK"]} == own


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
    assert environment_of(["a", "a", "b", "b", "b"], 3, host, 2222) == {
        "HOROVOD_HOSTNAME": "b",
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "5",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "3",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
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
    with hold_ports(1) as (port,), pytest.raises(TimeoutError) as raised:
        wait_for_server("127.0.0.1", port, 0.1)
    assert str(raised.value) == (
        f"rank 0 does not serve Horovod's rendezvous at 127.0.0.1:{port} after 0.1 s"
    )
