"""Real tasks at the startup barrier: when they pass, and which errors they report."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.startup import (
    PS,
    SETTINGS,
    W0,
    W1,
    W2,
    FakeChannel,
    FakeTask,
    Participants,
    config,
    hello,
    outcomes_of,
    sends,
    server,
    workers,
)
from tfdist.cluster import Cluster, Task
from tfdist.coordination.listening import listen
from tfdist.coordination.probe import Listener, identify
from tfdist.coordination.startup import addresses, protocol, wait_at_barrier
from tfdist.coordination.startup.peers import peers_of
from tfdist.coordination.startup.protocol import Hello, Reach, Report, Status
from tfdist.errors import UsageError
from tfdist.tools.launch.local import hold_ports

pytestmark = [pytest.mark.stacks("newest", horovod=("2.15",)), pytest.mark.timeout(60)]


def test_all_tasks_pass_and_close_their_ports(three: Cluster) -> None:
    outcomes = outcomes_of(*(config(three, task) for task in three.tasks()))

    assert [outcome.verdict for outcome in outcomes] == [""] * 3
    for task in three.tasks():
        addresses.open_port(three, task).close()


def test_no_connection_stays_open(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a peer whose gRPC reconnects: it would wait forever for an answer.

    Asyncio has accepted it, but the coroutine that would close it has not begun at the end.
    """
    kept: list[Any] = []

    async def receive(self: Any, *connection: Any) -> None:
        kept.append(connection)

    monkeypatch.setattr("tfdist.coordination.startup.participant.Participant._receive", receive)
    participants = Participants()
    participants.start(config(three, W0, timeout=1.5))
    with connected(three.address(W0)) as client:
        participants.outcomes()
        assert kept
        client.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    """A connection to an address, as soon as something listens there."""
    host, _, port = address.rpartition(":")
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            with socket.create_connection((host, int(port)), 10) as client:
                yield client
            return
        time.sleep(0.02)


def test_sixteen_tasks_pass() -> None:
    with hold_ports(16) as ports:
        cluster = workers(ports)
        outcomes = outcomes_of(*(config(cluster, task) for task in cluster.tasks()))
    assert [outcome.verdict for outcome in outcomes] == [""] * 16


def test_the_barrier_waits_for_a_late_task(three: Cluster) -> None:
    participants = Participants()
    participants.start(config(three, W0))
    participants.start(config(three, W1))
    time.sleep(1.0)
    begin = time.monotonic()
    participants.start(config(three, W2))
    outcomes = participants.outcomes()

    assert [outcome.verdict for outcome in outcomes] == [""] * 3
    assert outcomes[0].seconds >= 1.0
    assert time.monotonic() - begin < 20


def test_a_task_that_has_started_is_contacted_immediately(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pause in ("_FIRST_PAUSE", "_LAST_PAUSE"):
        monkeypatch.setattr(f"tfdist.coordination.startup.participant.{pause}", 60.0)
    participants = Participants()
    participants.start(config(three, W0))
    participants.start(config(three, W1))
    time.sleep(0.2)
    participants.start(config(three, W2))
    assert [outcome.verdict for outcome in participants.outcomes()] == [""] * 3


def test_every_task_names_a_task_that_never_starts(three: Cluster) -> None:
    first, second = outcomes_of(config(three, W0, timeout=2.0), config(three, W1, timeout=60.0))

    address = three.address(W2)
    assert first.verdict == f"worker:2 has not started: nothing listens at {address}."
    assert second.verdict == first.verdict, "a task that gives up ends the barrier for all"
    assert f"worker:0 and worker:1 → worker:2 {address} refused" in first.details
    assert str(first).startswith(first.verdict)


def test_the_awaited_task_is_logged(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.coordination.startup.participant._FIRST_NOTICE", 1.5)
    participants = Participants()
    participants.start(config(three, W0, timeout=3.0))
    participants.start(config(three, W1, timeout=3.0))
    participants.outcomes()

    (line,) = participants.lines[W0]
    assert line.startswith(
        f"worker:0 waits for worker:2 ({three.address(W2)} refused); it gives up in "
    )


def test_every_task_names_a_task_with_a_different_cluster_description(three: Cluster) -> None:
    with hold_ports(1) as (port,):
        wrong = Cluster(worker=(*three.worker[:2], f"127.0.0.1:{port}"))
        outcomes = outcomes_of(config(three, W0), config(three, W1), config(wrong, W2))

    for outcome in outcomes:
        assert outcome.verdict.startswith(
            f"the address of worker:2 is not the same in all tasks: {three.address(W2)} in "
            f"worker:0 and worker:1, 127.0.0.1:{port} in worker:2."
        )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"versions": {"python": "4"}},
            "python is not the same in all tasks: 3 in worker:0 and worker:2, 4 in worker:1. Give "
            "all tasks the same one.",
        ),
        (
            {"strategy": "horovod"},
            "--strategy is not the same in all tasks: multi_worker_mirrored in worker:0 and "
            "worker:2, horovod in worker:1. Give all tasks the same one.",
        ),
    ],
)
def test_every_task_names_a_task_with_a_different_version_or_strategy(
    three: Cluster, change: dict[str, Any], sentence: str
) -> None:
    outcomes = outcomes_of(config(three, W0), config(three, W1, **change), config(three, W2))
    assert [outcome.verdict for outcome in outcomes] == [sentence] * 3


@pytest.mark.parametrize(
    ("task", "is_swapped", "sentence"),
    [
        (W0, False, "worker:0 was started twice: on host "),
        (W1, True, "the address of worker:0 is not the same in all tasks: "),
    ],
)
def test_both_tasks_with_one_port_name_the_mistake(
    three: Cluster, task: Task, is_swapped: bool, sentence: str
) -> None:
    """Two tasks with one index, or the hosts in another order."""
    first, second, third = three.worker
    participants = Participants()
    participants.start(config(three, W0))
    while identify(first) is not Listener.BARRIER:
        time.sleep(0.02)
    other = Cluster(worker=(second, first, third)) if is_swapped else three
    addresses.check_port(other, task)
    participants.start(config(other, task))
    for outcome in participants.outcomes():
        assert outcome.verdict.startswith(sentence)


def test_a_task_that_starts_later_receives_the_same_error(three: Cluster) -> None:
    participants = Participants()
    participants.start(config(three, W0))
    participants.start(config(three, W1, strategy="horovod"))
    time.sleep(1.0)
    participants.start(config(three, W2))
    assert {outcome.verdict for outcome in participants.outcomes()} == {
        "--strategy is not the same in all tasks: multi_worker_mirrored in worker:0 and "
        "worker:2, horovod in worker:1. Give all tasks the same one."
    }


def test_every_task_names_swapped_tasks(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # Simulate that each runs on the machine of the other.
    swapped, open_port = {W0: W0, W1: W2, W2: W1}, addresses.open_port
    monkeypatch.setattr(
        addresses, "open_port", lambda cluster, task: open_port(cluster, swapped[task])
    )

    for outcome in outcomes_of(*(config(three, task) for task in three.tasks())):
        assert outcome.verdict.startswith("worker:1 and worker:2 are swapped")


def test_an_address_that_leads_back_to_the_same_task_is_named() -> None:
    with hold_ports(1) as (port,):
        cluster = Cluster(worker=(f"127.0.0.1:{port}", f"127.0.0.2:{port}"))
        (outcome,) = outcomes_of(config(cluster, W0, timeout=2.0))
    assert outcome.verdict.startswith(
        f"worker:0 answers at 127.0.0.2:{port}, the address of worker:1 (on host "
    )


@contextlib.contextmanager
def answering(cluster: Cluster, greeting: Hello) -> Iterator[None]:
    """Listens at a task's address and answers each hello."""

    def answer(connection: socket.socket) -> None:
        FakeChannel(connection, asks=False).send(greeting)

    with server(cluster.address(greeting.task), answer):
        yield


def test_no_task_passes_before_all_tasks_reach_their_peers(three: Cluster) -> None:
    """A firewall blocks the connections from worker 1 to worker 2."""
    greeting = hello(three, W1)
    with answering(three, greeting):
        participants = Participants()
        participants.start(config(three, W0, timeout=3.0))
        participants.start(config(three, W2, timeout=30.0))
        fake = FakeTask(three, W0, greeting)
        fake.send(Report({W2: Reach(protocol.TIMED_OUT)}))
        outcomes = participants.outcomes()
        fake.close()
    for outcome in outcomes:
        assert outcome.verdict.startswith("worker:2 runs on host ")
        assert f", but worker:1 cannot reach it at its address {three.address(W2)} (timed out)" in (
            outcome.verdict
        )
        assert f"worker:1 → worker:2 {three.address(W2)} timed out" in outcome.details


def test_a_member_that_gives_up_ends_the_barrier_for_all(three: Cluster) -> None:
    outcomes = outcomes_of(config(three, W0, timeout=60.0), config(three, W1, timeout=2.0))
    verdict = f"worker:2 has not started: nothing listens at {three.address(W2)}."
    assert [outcome.verdict for outcome in outcomes] == [verdict] * 2
    assert outcomes[0].details == outcomes[1].details


def test_a_task_without_a_chief_reports_the_missing_chief(three: Cluster) -> None:
    outcomes = outcomes_of(config(three, W1, timeout=2.0), config(three, W2, timeout=2.0))
    verdict = f"worker:0 has not started: nothing listens at {three.address(W0)}."
    assert [outcome.verdict for outcome in outcomes] == [verdict] * 2
    assert f"worker:1 → worker:0 {three.address(W0)} refused" in outcomes[0].details


def test_tasks_find_a_restarted_chief(three: Cluster) -> None:
    participants = Participants()
    participants.start(config(three, W1))
    participants.start(config(three, W2))
    lost = threading.Event()

    def answer(connection: socket.socket) -> None:
        FakeChannel(connection, asks=False).send(hello(three, W0))
        lost.wait(10)

    with server(three.address(W0), answer):
        time.sleep(1.0)
        lost.set()
    participants.start(config(three, W0))
    assert [outcome.verdict for outcome in participants.outcomes()] == [""] * 3


def test_the_barrier_waits_for_a_restarted_task(three: Cluster) -> None:
    participants = Participants()
    participants.start(config(three, W0))
    participants.start(config(three, W2))
    with answering(three, hello(three, W1)):
        first = FakeTask(three, W0, hello(three, W1))
        first.send(Report())
        assert isinstance(first.receive(), Status)
        first.close()
    participants.start(config(three, W1))
    assert [outcome.verdict for outcome in participants.outcomes()] == [""] * 3


def test_a_task_connects_to_the_chief_the_ps_and_its_neighbors() -> None:
    workers = tuple(f"10.0.1.{index}:1" for index in range(40))
    cluster = Cluster(worker=workers, ps=("10.0.2.0:1", "10.0.2.1:1"))
    assert len(peers_of(cluster, W0)) == 41
    assert set(peers_of(cluster, Task("worker", 3))) == {
        W0,
        *(Task("worker", index) for index in range(4, 36)),
        Task("ps", 0),
        Task("ps", 1),
    }
    assert len(peers_of(Cluster(worker=workers[:30]), Task("worker", 20))) == 29


def test_a_job_with_few_neighbors_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfdist.coordination.startup.peers._NEIGHBORS", 2)
    with hold_ports(12) as ports:
        cluster = workers(ports)
        outcomes = outcomes_of(*(config(cluster, task) for task in cluster.tasks()))
    assert [outcome.verdict for outcome in outcomes] == [""] * 12


def test_every_task_names_a_task_that_was_started_twice(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_port = addresses.open_port

    def anywhere(cluster: Cluster, task: Task) -> addresses.ListeningSocket:
        # Simulate another machine, where the port is free.
        try:
            return open_port(cluster, task)
        except UsageError:
            return addresses.ListeningSocket(listen())

    monkeypatch.setattr(addresses, "open_port", anywhere)
    participants = Participants()
    for task in (W1, W1, W0):
        participants.start(config(three, task))
    # If worker 2 had started earlier, the others would pass before they detect the second process.
    time.sleep(1.0)
    participants.start(config(three, W2))
    for outcome in participants.outcomes():
        assert outcome.verdict.startswith("worker:1 was started twice: on host ")


def test_an_older_process_that_still_reports_is_a_duplicate(three: Cluster) -> None:
    participants = Participants()
    participants.start(config(three, W0))
    older = FakeTask(three, W0, hello(three, W1))
    older.send(Report())
    participants.start(config(three, W1))
    participants.start(config(three, W2))
    with contextlib.suppress(OSError):
        while True:
            time.sleep(0.05)
            older.send(Report())
    for outcome in participants.outcomes():
        assert outcome.verdict.startswith("worker:1 was started twice: on host host-of-worker-1, ")


def test_an_older_process_that_is_silent_counts_as_dead(three: Cluster) -> None:
    """Its machine was lost without closing the connection."""
    participants = Participants()
    participants.start(config(three, W0))
    participants.start(config(three, W2))
    lost = FakeTask(three, W0, hello(three, W1))
    lost.send(Report())
    participants.start(config(three, W1))
    assert [outcome.verdict for outcome in participants.outcomes()] == [""] * 3
    lost.close()


def test_a_leftover_server_blocks_the_first_start_of_a_job(job: Cluster) -> None:
    with server(job.address(PS), sends(SETTINGS)):
        outcomes = outcomes_of(*(config(job, task, joins=True, timeout=2.0) for task in (W0, W1)))
    for outcome in outcomes:
        assert outcome.verdict.startswith("ps:0 is running already")


def test_a_port_in_use_is_rejected(three: Cluster) -> None:
    with server(three.address(W0), sends(b"")), pytest.raises(UsageError, match="already in use"):
        wait_at_barrier(config(three, W0))
