"""Checks of addresses and ports that need no other task."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.support.startup import W0, workers
from tfdist.cluster import Cluster
from tfdist.coordination.startup import addresses as lint
from tfdist.errors import UsageError

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


NAMES = {"a": {"10.0.0.1"}, "b": {"10.0.0.2", "::2"}, "also-b": {"10.0.0.9", "10.0.0.2"}}


def resolve(host: str) -> frozenset[str]:
    return frozenset(NAMES.get(host, {host} if host[0].isdigit() else ()))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that knows `NAMES`."""
    monkeypatch.setattr(lint, "resolve", resolve)


@pytest.mark.parametrize(
    ("addresses", "field"),
    [
        (("a:1", "b:1", "also-b:1"), "address of worker:2"),
        (("10.0.0.1:1", "b:1", "a:1"), "address of worker:2"),
        (("a:1", "b:1", "also-b:2"), None),
        (("unknown:1", "also-unknown:1"), None),
    ],
)
@pytest.mark.usefixtures("names")
def test_one_address_under_two_names_is_a_duplicate(
    addresses: tuple[str, ...], field: str | None
) -> None:
    if field is None:
        lint.check_addresses(Cluster(worker=addresses))
        return
    with pytest.raises(UsageError) as error:
        lint.check_addresses(Cluster(worker=addresses))
    assert (error.value.field, error.value.received) == (field, addresses[2])
    assert f"as {addresses[1] if 'b' in addresses[2] else addresses[0]}" in error.value.remedy


def test_two_names_of_this_machine_are_duplicates() -> None:
    with pytest.raises(UsageError, match=r"^address of worker:1: received 'localhost:2222'"):
        lint.check_addresses(Cluster(worker=("127.0.0.1:2222", "localhost:2222")))
    lint.check_addresses(Cluster(worker=("127.0.0.1:2222", "localhost:2223")))


@pytest.mark.parametrize("loopback", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.usefixtures("names")
def test_a_loopback_address_in_a_cluster_of_several_machines_is_rejected(
    loopback: str, is_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint, "is_of_this_machine", lambda _: is_here)
    cluster = Cluster(worker=("a:1", f"{loopback}:2"))
    if is_here:
        lint.check_addresses(cluster)
        return
    with pytest.raises(UsageError) as error:
        lint.check_addresses(cluster)
    assert error.value.field == "address of worker:1"
    assert "worker:0 is at a:1" in error.value.accepted


def test_a_slow_name_server_does_not_block_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(host: str) -> frozenset[str]:
        answered.wait(120)
        return frozenset()

    monkeypatch.setattr(lint, "resolve", slow)
    begin = time.monotonic()
    lint.check_addresses(Cluster(worker=("a:1", "b:1")))
    answered.set()
    assert time.monotonic() - begin < 60


def test_addresses_of_this_machine_are_recognized() -> None:
    assert lint.is_of_this_machine("127.0.0.1")
    assert not lint.is_of_this_machine("192.0.2.1")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_rejected(host: str) -> None:
    with socket.create_server((host, 0)) as taken:
        cluster = workers([taken.getsockname()[1], 1])
        for check in (lint.check_port, lint.open_port):
            with pytest.raises(UsageError) as error:
                check(cluster, W0)
            assert error.value.field == "address of worker:0"
            assert "Address already in use" in error.value.remedy
