"""Meetings of real tasks: who is waited for, who is named, when they leave."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from typing import Any

import pytest

from tests.support.startup import (
    PS,
    SETTINGS,
    W0,
    W1,
    W2,
    Meetings,
    Visitor,
    hello,
    met,
    party,
    says,
    server,
    workers,
)
from tfdist.cluster import Cluster, Task
from tfdist.coordination.startup import addresses, protocol, wait_at_barrier
from tfdist.coordination.startup.protocol import Reach, Row, decode, encode
from tfdist.errors import UsageError
from tfdist.launch.local import hold_ports

pytestmark = pytest.mark.timeout(60)


def test_all_tasks_meet_and_leave_their_ports(three: Cluster) -> None:
    outcomes = met(*(party(three, task) for task in three.tasks()))

    assert [outcome.verdict for outcome in outcomes] == [""] * 3
    assert "worker:2   ok        ok        -" in outcomes[0].matrix
    for task in three.tasks():
        addresses.open_port(three, task).close()


def test_sixteen_tasks_meet() -> None:
    with hold_ports(16) as ports:
        cluster = workers(ports)
        outcomes = met(*(party(cluster, task) for task in cluster.tasks()))
    assert [outcome.verdict for outcome in outcomes] == [""] * 16


def test_a_task_that_comes_late_is_waited_for(three: Cluster) -> None:
    meetings = Meetings()
    meetings.start(party(three, W0))
    meetings.start(party(three, W1))
    time.sleep(1.0)
    begin = time.monotonic()
    meetings.start(party(three, W2))
    outcomes = meetings.outcomes()

    assert [outcome.verdict for outcome in outcomes] == [""] * 3
    assert outcomes[0].seconds >= 1.0
    assert time.monotonic() - begin < 20


def test_a_task_that_comes_is_visited_at_once(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_FIRST_PAUSE", "_LAST_PAUSE"):
        monkeypatch.setattr(f"tfdist.coordination.startup.barrier.{pause}", 60.0)
    meetings = Meetings()
    meetings.start(party(three, W0))
    meetings.start(party(three, W1))
    time.sleep(0.2)
    meetings.start(party(three, W2))
    assert [outcome.verdict for outcome in meetings.outcomes()] == [""] * 3


def test_a_task_that_never_starts_is_named_by_all(three: Cluster) -> None:
    first, second = met(party(three, W0, timeout=2.0), party(three, W1, timeout=60.0))

    address = three.address(W2)
    assert first.verdict == f"worker:2 has not started: nothing listens at {address}."
    assert second.verdict == first.verdict, "who gives up tells the others"
    assert f"worker:1 → worker:2 {address} refused" in first.matrix
    assert str(first).startswith(first.verdict)


def test_whom_a_task_waits_for_is_said(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.coordination.startup.barrier._FIRST_NOTICE", 1.5)
    meetings = Meetings()
    meetings.start(party(three, W0, timeout=3.0))
    meetings.start(party(three, W1, timeout=3.0))
    meetings.outcomes()

    (line,) = meetings.lines[W0]
    assert line.startswith(f"worker:0 waits for worker:2 ({three.address(W2)} refused); for ")


def test_another_cluster_description_is_named_by_all(three: Cluster) -> None:
    with hold_ports(1) as (port,):
        wrong = Cluster(worker=(*three.worker[:2], f"127.0.0.1:{port}"))
        outcomes = met(party(three, W0), party(three, W1), party(wrong, W2))

    for outcome in outcomes:
        assert outcome.verdict.startswith(
            "worker:2 has another cluster description than worker:0 and worker:1: worker:2 is at "
            f"127.0.0.1:{port} for worker:2 and at {three.address(W2)} for the others."
        )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"versions": {"python": "4"}}, "worker:1 has python 4, and the others 3."),
        (
            {"strategy": "horovod"},
            "worker:1 has --strategy horovod, and the others multi_worker_mirrored.",
        ),
    ],
)
def test_another_version_or_strategy_is_named_by_all(
    three: Cluster, change: dict[str, Any], sentence: str
) -> None:
    outcomes = met(party(three, W0), party(three, W1, **change), party(three, W2))
    assert [outcome.verdict for outcome in outcomes] == [sentence] * 3


def test_a_contradiction_is_told_to_a_task_that_comes_a_moment_later(three: Cluster) -> None:
    meetings = Meetings()
    meetings.start(party(three, W0))
    meetings.start(party(three, W1, strategy="horovod"))
    time.sleep(1.0)
    meetings.start(party(three, W2))
    assert {outcome.verdict for outcome in meetings.outcomes()} == {
        "worker:1 has --strategy horovod, and the others multi_worker_mirrored."
    }


def test_swapped_tasks_are_named_by_all(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if each ran on the other's machine.
    elsewhere, open_port = {W0: W0, W1: W2, W2: W1}, addresses.open_port
    monkeypatch.setattr(
        addresses, "open_port", lambda cluster, task: open_port(cluster, elsewhere[task])
    )

    for outcome in met(*(party(three, task) for task in three.tasks())):
        assert outcome.verdict.startswith("worker:1 and worker:2 are swapped")


def test_an_address_that_leads_back_is_named() -> None:
    with hold_ports(1) as (port,):
        cluster = Cluster(worker=(f"127.0.0.1:{port}", f"127.0.0.2:{port}"))
        (outcome,) = met(party(cluster, W0, timeout=2.0))
    assert outcome.verdict.startswith(
        f"worker:0 answers at 127.0.0.2:{port}, the address of worker:1 (on host "
    )


def test_nobody_leaves_before_all_reach_all(three: Cluster) -> None:
    """A firewall is between worker 1 and worker 2, in one direction."""
    said = hello(three, W1)
    blocked = Row({W2: Reach(protocol.TIMED_OUT)}, (W0, W2))

    def answer(connection: socket.socket) -> None:
        file = connection.makefile("rb")
        file.readline()
        connection.sendall(encode(said))
        while isinstance(message := decode(file.readline()), Row):
            connection.sendall(encode(dataclasses.replace(blocked, noted=message.complete)))

    with server(three.address(W1), answer):
        meetings = Meetings()
        meetings.start(party(three, W0, timeout=3.0))
        meetings.start(party(three, W2, timeout=6.0))
        visitors = [Visitor(three, task, said) for task in (W0, W2)]
        for visitor in visitors:
            visitor.send(blocked)
        outcomes = meetings.outcomes()
        for visitor in visitors:
            visitor.close()
    for outcome in outcomes:
        assert outcome.verdict.startswith("worker:2 runs on host ")
        assert f"is not reached at its address {three.address(W2)} by worker:1 (timed out)" in (
            outcome.verdict
        )


def test_a_task_that_is_started_again_in_mid_meeting_is_met(three: Cluster) -> None:
    meetings = Meetings()
    meetings.start(party(three, W0))
    meetings.start(party(three, W2))
    first = Visitor(three, W0, hello(three, W1))
    first.send(Row(complete=True))
    while not (isinstance(answer := first.receive(), Row) and answer.noted):
        pass
    first.close()
    meetings.start(party(three, W1))
    assert [outcome.verdict for outcome in meetings.outcomes()] == [""] * 3


def test_a_task_that_was_started_twice_is_named_by_all(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_port = addresses.open_port

    def anywhere(cluster: Cluster, task: Task) -> socket.socket:
        # As if on another machine, where the port is free.
        try:
            return open_port(cluster, task)
        except UsageError:
            return socket.create_server(("", 0))

    monkeypatch.setattr(addresses, "open_port", anywhere)
    meetings = Meetings()
    for task in (W1, W1, W0):
        meetings.start(party(three, task))
    # Who came before the second process would have left without it.
    time.sleep(1.0)
    meetings.start(party(three, W2))
    for outcome in meetings.outcomes():
        assert outcome.verdict.startswith("worker:1 was started twice: on host ")


def test_an_older_process_that_lives_is_a_second_one(three: Cluster) -> None:
    meetings = Meetings()
    meetings.start(party(three, W0))
    older = Visitor(three, W0, hello(three, W1))
    meetings.start(party(three, W1))
    meetings.start(party(three, W2))
    with contextlib.suppress(OSError):
        while True:
            time.sleep(0.05)
            older.send(Row(complete=True))
    for outcome in meetings.outcomes():
        assert outcome.verdict.startswith("worker:1 was started twice: on host host-of-worker-1, ")


def test_an_older_process_that_is_silent_counts_as_dead(three: Cluster) -> None:
    """Its machine was lost, and has not closed the connection."""
    meetings = Meetings()
    meetings.start(party(three, W0))
    meetings.start(party(three, W2))
    lost = Visitor(three, W0, hello(three, W1))
    meetings.start(party(three, W1))
    assert [outcome.verdict for outcome in meetings.outcomes()] == [""] * 3
    lost.close()


def test_a_worker_is_replaced_while_the_others_train(job: Cluster) -> None:
    with server(job.address(W0), says(SETTINGS)), server(job.address(PS), says(SETTINGS)):
        joined, waited = (
            met(party(job, W1, joins=joins, timeout=2.0))[0] for joins in (True, False)
        )
    assert joined.verdict == ""
    assert "worker:0 is running already" in waited.verdict


def test_two_workers_are_replaced_while_the_others_train() -> None:
    with hold_ports(4) as ports:
        first, second, third, ps = (f"127.0.0.1:{port}" for port in ports)
        cluster = Cluster(worker=(first, second, third), ps=(ps,))
        with server(first, says(SETTINGS)), server(ps, says(SETTINGS)):
            outcomes = met(*(party(cluster, task, joins=True) for task in (W1, W2)))
    assert [outcome.verdict for outcome in outcomes] == ["", ""]


def test_a_server_that_is_left_over_does_not_let_a_first_start_through(job: Cluster) -> None:
    with server(job.address(PS), says(SETTINGS)):
        outcomes = met(*(party(job, task, joins=True, timeout=2.0) for task in (W0, W1)))
    for outcome in outcomes:
        assert outcome.verdict.startswith("ps:0 is running already")


def test_clocks_that_are_apart_are_a_warning(three: Cluster) -> None:
    meetings = Meetings()
    meetings.start(party(three, W0))
    meetings.start(party(three, W1))
    meetings.start(party(three, W2), clock=lambda: time.time() + 60)
    assert [outcome.verdict for outcome in meetings.outcomes()] == [""] * 3
    for lines in meetings.lines.values():
        (line,) = lines
        assert line.startswith("warning: the clock of worker:2 is ")
        assert line.endswith(" s ahead of those of the others.")


def test_a_port_that_is_taken_in_the_meantime_is_refused(three: Cluster) -> None:
    with server(three.address(W0), says(b"")), pytest.raises(UsageError, match="already in use"):
        wait_at_barrier(party(three, W0))
