"""Meetings before training: what is found wrong, whom the answer names, and who is ignored."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist import cli
from tfdist.cluster import Cluster, Task, host_and_port
from tfdist.errors import UsageError
from tfdist.launch.local import hold_ports
from tfdist.preflight import Outcome, Party, lint, meet, messages
from tfdist.preflight.faults import are_of_one_job, clocks, find, names
from tfdist.preflight.messages import LIMIT, Hello, Reach, Row, Verdict, decode, encode
from tfdist.preflight.report import Found, explain, matrix

ROOT = Path(__file__).parent.parent
CHIEF, W0, W1, W2, PS = (
    Task("chief", 0),
    Task("worker", 0),
    Task("worker", 1),
    Task("worker", 2),
    Task("ps", 0),
)
SETTINGS = bytes.fromhex("000018040000000000000400400000000500400000")

pytestmark = pytest.mark.timeout(60)


def workers(ports: Sequence[int]) -> Cluster:
    return Cluster(worker=tuple(f"127.0.0.1:{port}" for port in ports))


@pytest.fixture
def three() -> Iterator[Cluster]:
    with hold_ports(3) as ports:
        yield workers(ports)


@pytest.fixture
def job() -> Iterator[Cluster]:
    """Two workers and a ps, the first worker leads."""
    with hold_ports(3) as ports:
        first, second, ps = (f"127.0.0.1:{port}" for port in ports)
        yield Cluster(worker=(first, second), ps=(ps,))


def party(cluster: Cluster, task: Task, **changes: Any) -> Party:
    defaults = {"strategy": "multi_worker_mirrored", "timeout": 20.0, "versions": {"python": "3"}}
    return Party(cluster=cluster, task=task, **{**defaults, **changes})


class Meetings:
    """Tasks that meet at the same time, each in a thread of its own."""

    def __init__(self) -> None:
        self.lines: dict[Task, list[str]] = {}
        self._results: list[Outcome | BaseException | None] = []
        self._threads: list[threading.Thread] = []

    def start(self, one: Party, clock: Callable[[], float] = time.time) -> None:
        place = len(self._results)
        self._results.append(None)
        lines = self.lines.setdefault(one.task, [])

        def run() -> None:
            try:
                self._results[place] = meet(one, say=lines.append, clock=clock)
            except BaseException as error:
                self._results[place] = error

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def outcomes(self) -> list[Outcome]:
        """How each of them ended, in the order of their starts."""
        for thread in self._threads:
            thread.join(timeout=45)
            assert not thread.is_alive(), "a meeting should end"
        found = []
        for result in self._results:
            assert isinstance(result, Outcome), repr(result)
            found.append(result)
        return found


def met(*parties: Party) -> list[Outcome]:
    meetings = Meetings()
    for one in parties:
        meetings.start(one)
    return meetings.outcomes()


def hello(cluster: Cluster, task: Task, **changes: Any) -> Hello:
    """What a task of `party` says of itself."""
    defaults: dict[str, Any] = {
        "token": "e3b0c44298fc1c14",
        "purpose": "training",
        "incarnation": f"some {task}",
        "host": f"host-of-{task.type}-{task.index}",
        "pid": 7,
        "strategy": "multi_worker_mirrored",
        "versions": {"python": "3"},
        "clock": time.time(),
    }
    return Hello(cluster=cluster, task=task, **{**defaults, **changes})


class Visitor:
    """A connection of a task whose part the test plays."""

    def __init__(self, cluster: Cluster, to: Task, said: Hello | None = None) -> None:
        self.socket = dial(cluster.address(to))
        self.file = self.socket.makefile("rb")
        if said is not None:
            self.send(said)
            answer = self.receive()
            assert isinstance(answer, Hello)
            self.answer = answer

    def send(self, message: messages.Message) -> None:
        self.socket.sendall(encode(message))

    def receive(self) -> messages.Message | None:
        return decode(self.file.readline())

    def close(self) -> None:
        self.file.close()
        self.socket.close()


def dial(address: str) -> socket.socket:
    """A connection to an address where something will listen soon."""
    until = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(host_and_port(address), timeout=15)
        except OSError:
            assert time.monotonic() < until, f"nothing listens at {address}"
            time.sleep(0.01)


@contextlib.contextmanager
def server(address: str, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Something that listens at an address and treats each connection as it likes."""
    with socket.create_server(host_and_port(address)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=handle, args=[connection], daemon=True).start()

        def handle(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                answer(connection)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield
        finally:
            # A close alone would not wake the thread that accepts.
            listener.shutdown(socket.SHUT_RDWR)


def says(data: bytes) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(data)
        while connection.recv(4096):
            pass

    return answer


# The configuration by itself.


NAMES = {"a": {"10.0.0.1"}, "b": {"10.0.0.2", "::2"}, "also-b": {"10.0.0.9", "10.0.0.2"}}


def resolve(host: str) -> frozenset[str]:
    return frozenset(NAMES.get(host, {host} if host[0].isdigit() else ()))


@pytest.mark.parametrize(
    ("addresses", "field"),
    [
        (("a:1", "b:1", "also-b:1"), "address of worker:2"),
        (("10.0.0.1:1", "b:1", "a:1"), "address of worker:2"),
        (("a:1", "b:1", "also-b:2"), None),
        (("unknown:1", "also-unknown:1"), None),
    ],
)
def test_one_address_under_two_names_is_a_duplicate(
    addresses: tuple[str, ...], field: str | None
) -> None:
    if field is None:
        lint.check_addresses(Cluster(worker=addresses), resolve=resolve)
        return
    with pytest.raises(UsageError) as error:
        lint.check_addresses(Cluster(worker=addresses), resolve=resolve)
    assert (error.value.field, error.value.received) == (field, addresses[2])
    assert f"as {addresses[1] if 'b' in addresses[2] else addresses[0]}" in error.value.remedy


def test_this_machines_names_resolve() -> None:
    with pytest.raises(UsageError, match=r"^address of worker:1: received 'localhost:2222'"):
        lint.check_addresses(Cluster(worker=("127.0.0.1:2222", "localhost:2222")))
    lint.check_addresses(Cluster(worker=("127.0.0.1:2222", "localhost:2223")))


@pytest.mark.parametrize("loopback", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
@pytest.mark.parametrize("is_here", [True, False])
def test_loopback_among_machines(loopback: str, is_here: bool) -> None:
    cluster = Cluster(worker=("a:1", f"{loopback}:2"))

    def check() -> None:
        lint.check_addresses(cluster, resolve=resolve, is_of_this_machine=lambda _: is_here)

    if is_here:
        check()
        return
    with pytest.raises(UsageError) as error:
        check()
    assert error.value.field == "address of worker:1"
    assert "worker:0 is at a:1" in error.value.accepted


def test_a_name_server_that_does_not_answer_is_not_waited_for() -> None:
    answered = threading.Event()

    def slow(host: str) -> frozenset[str]:
        answered.wait(20)
        return frozenset()

    begin = time.monotonic()
    lint.check_addresses(Cluster(worker=("a:1", "b:1")), resolve=slow)
    answered.set()
    assert time.monotonic() - begin < 15


def test_which_addresses_are_of_this_machine() -> None:
    assert lint.is_of_this_machine("127.0.0.1")
    assert not lint.is_of_this_machine("192.0.2.1")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_is_taken_is_refused(host: str) -> None:
    with socket.create_server((host, 0)) as taken:
        cluster = workers([taken.getsockname()[1], 1])
        for ask in (lint.check_port, lint.open_port):
            with pytest.raises(UsageError) as error:
                ask(cluster, W0)
            assert error.value.field == "address of worker:0"
            assert "Address already in use" in error.value.remedy


# Messages.


HELLO = hello(Cluster(worker=("a:1", "b:1"), ps=("c:1",)), W1, clock=1e9)
ROW = Row({PS: Reach(messages.UNREACHABLE, "no route to host")}, (W0,), complete=True)


@pytest.mark.parametrize("message", [HELLO, ROW, Row(noted=True), Verdict("worker:1 → ps:0")])
def test_a_message_is_a_line_that_reads_back(message: messages.Message) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode(line) == message


def changed(message: messages.Message, **changes: Any) -> bytes:
    return json.dumps({**json.loads(encode(message)), **changes}).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        encode(HELLO)[:-1],
        b"[" * 200_000 + b"\n",
        b"9" * 10_000 + b"\n",
        changed(HELLO, protocol="tfdist/2"),
        changed(HELLO, kind="Found"),
        changed(HELLO, kind=["Hello"]),
        changed(HELLO, task="evaluator:0"),
        changed(HELLO, task="worker:-1"),
        changed(HELLO, task="worker:1\n"),
        changed(HELLO, task=1),
        changed(HELLO, task="worker:2"),
        changed(HELLO, host="\x1b[2J"),
        changed(HELLO, host="h" * 256),
        changed(HELLO, pid="7"),
        changed(HELLO, pid=True),
        changed(HELLO, clock="now"),
        changed(HELLO, clock=float("nan")),
        changed(HELLO, clock=None),
        changed(HELLO, cluster={"worker": ["no port"]}),
        changed(HELLO, cluster={"evaluator": ["a:1"]}),
        changed(HELLO, cluster=[]),
        changed(HELLO, versions=["python"]),
        changed(HELLO, versions={"python": 3}),
        changed(HELLO, strategy="s" * LIMIT),
        changed(ROW, reach={"worker:0": ["fell asleep", ""]}),
        changed(ROW, reach={"worker:0": "refused"}),
        changed(ROW, reach=[["worker:0", "refused"]]),
        changed(ROW, heard="worker:0"),
        changed(Verdict(""), text="two\nlines"),
        changed(Verdict(""), text="x" * 5000),
    ],
)
def test_anything_else_is_no_message(line: bytes) -> None:
    assert decode(line) is None


@settings(deadline=None)
@given(st.binary(), st.recursive(st.none() | st.integers() | st.text(), st.lists))
def test_no_line_raises(line: bytes, value: Any) -> None:
    assert decode(line) is None
    assert decode(line + b"\n") is None
    for name in json.loads(encode(HELLO)):
        decode(changed(HELLO, **{name: value}))
    for name in json.loads(encode(ROW)):
        decode(changed(ROW, **{name: value}))


def test_the_versions_are_those_that_the_strategy_needs() -> None:
    assert set(messages.versions("horovod")) - {"horovod"} == set(messages.versions("mirrored"))
    assert messages.versions("mirrored")["python"] == ".".join(map(str, sys.version_info[:2]))


# Contradictions.


A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
TOLD = Cluster(worker=(A, B, C))


def hellos(**changes: Mapping[str, Any]) -> dict[Task, Hello]:
    """Of three workers, with what is different in `w0`, `w1` and `w2`."""
    return {
        task: hello(**{"cluster": TOLD, "task": task, **changes.get(f"w{task.index}", {})})
        for task in (W0, W1, W2)
    }


def found_in(heard: Mapping[Task, Hello], **more: Any) -> str | None:
    return find(heard, **{"misplaced": {}, "twice": {}, **more})


def test_equal_tasks_do_not_contradict_each_other() -> None:
    assert found_in(hellos()) is None


@pytest.mark.parametrize(
    ("cluster", "differs"),
    [
        (
            Cluster(worker=(A, B, "10.0.0.3:2")),
            "worker:2 is at 10.0.0.3:2 for worker:1 and at " + C,
        ),
        (Cluster(worker=(B, A, C)), f"worker:0 is at {B} for worker:1 and at {A}"),
        (Cluster(worker=(A, B)), f"worker:2 is absent for worker:1 and at {C}"),
        (Cluster(worker=(A, B, C), ps=("d:1",)), "ps:0 is at d:1 for worker:1 and absent"),
    ],
)
def test_the_minority_has_the_wrong_description(cluster: Cluster, differs: str) -> None:
    assert found_in(hellos(w1={"cluster": cluster})) == (
        "worker:1 has another cluster description than worker:0 and worker:2: "
        f"{differs} for the others. Give all tasks the same."
    )


def test_two_descriptions_with_as_many_tasks_each() -> None:
    heard = hellos(w1={"cluster": Cluster(worker=(A, B))})
    del heard[W2]
    assert found_in(heard) == (
        "worker:0 and worker:1 have different cluster descriptions: worker:2 is at 10.0.0.3:1 for "
        "worker:0 and absent for worker:1. Give all tasks the same."
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"versions": {"python": "4"}}, "worker:1 has python 4, and the others 3."),
        ({"versions": {}}, "worker:1 has python none, and the others 3."),
        (
            {"strategy": "horovod"},
            "worker:1 has --strategy horovod, and the others multi_worker_mirrored.",
        ),
    ],
)
def test_the_minority_has_the_wrong_version_or_strategy(
    change: dict[str, Any], sentence: str
) -> None:
    assert found_in(hellos(w1=change)) == sentence
    heard = hellos(w1=change)
    del heard[W2]
    assert "is not the same in all tasks" in str(found_in(heard))


def test_tasks_in_each_others_places() -> None:
    heard = hellos()
    assert found_in(heard, misplaced={W1: heard[W2], W2: heard[W1]}) == (
        f"worker:1 and worker:2 are swapped: worker:2 answers at {B}, the address of worker:1 "
        "(on host host-of-worker-2, process 7), and the other way round. Swap them, or their "
        "addresses."
    )
    assert found_in(heard, misplaced={W1: heard[W0]}) == (
        f"worker:0 answers at {B}, the address of worker:1 (on host host-of-worker-0, process 7). "
        "Start worker:1 there, or correct the addresses."
    )
    again = dataclasses.replace(heard[W0], incarnation="another", pid=8)
    for twice in ({}, {W0: (heard[W0], again)}):
        assert found_in(heard, misplaced={W1: again}, twice=twice) == (
            "worker:0 was started twice: on host host-of-worker-0, process 7, and on host "
            f"host-of-worker-0, process 8. It answers at {B}, where worker:1 should."
        )


def test_a_task_that_was_started_twice() -> None:
    heard = hellos()
    assert found_in(heard, twice={W1: (heard[W1], dataclasses.replace(heard[W1], pid=8))}) == (
        "worker:1 was started twice: on host host-of-worker-1, process 7, and on host "
        "host-of-worker-1, process 8. End one of them."
    )


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"token": "another"}, False),
        ({"cluster": Cluster(worker=(A, B, "z:1"))}, True),
        ({"cluster": Cluster(worker=(A, B))}, True),
        ({"cluster": Cluster(worker=(B, C, A))}, True),
        ({"cluster": Cluster(worker=(A, "y:1", "z:1"))}, False),
        ({"cluster": Cluster(worker=("x:1", "y:1", "z:1"))}, False),
    ],
)
def test_which_tasks_are_of_one_job(changes: dict[str, Any], same: bool) -> None:
    one, other = hello(TOLD, W0), hello(**{"cluster": TOLD, "task": W1, **changes})
    assert are_of_one_job(one, other) == are_of_one_job(other, one) == same


@pytest.mark.parametrize(
    ("ahead", "sentences"),
    [
        ({W0: 0.0, W1: 4.0, W2: -4.0}, []),
        (
            {W0: 0.0, W1: 0.1, W2: 9.0},
            ["the clock of worker:2 is 8.9 s ahead of those of the others."],
        ),
        (
            {W0: 0.0, W1: 9.0, W2: 9.1},
            ["the clock of worker:0 is 9.0 s behind those of the others."],
        ),
        ({W0: 0.0, W1: 9.0}, ["the clock of worker:1 is 9.0 s ahead of that of worker:0."]),
        ({W0: 0.0, W1: -9.0}, ["the clock of worker:0 is 9.0 s ahead of that of worker:1."]),
        ({W0: 0.0, W1: 4.0}, []),
        ({W0: 0.0}, []),
    ],
)
def test_clocks_that_are_apart(ahead: dict[Task, float], sentences: list[str]) -> None:
    assert clocks(ahead) == sentences


# What a meeting without a contradiction found.


def known(rows: Mapping[Task, Row], **more: Any) -> Found:
    return Found(cluster=TOLD, task=W0, rows=rows, **more)


def row(kind: str, *tasks: Task, detail: str = "", heard: tuple[Task, ...] = ()) -> Row:
    return Row({task: Reach(kind, detail) for task in tasks}, heard)


HEARD = {W2: hello(TOLD, W2)}


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            known({W0: row(messages.REFUSED, W2), W1: row(messages.REFUSED, W2)}),
            f"worker:2 has not started: nothing listens at {C}.",
        ),
        (
            known({W0: row(messages.REFUSED, W1, W2)}),
            f"worker:1 and worker:2 have not started: nothing listens at {B}, {C}.",
        ),
        (
            known({W0: row(messages.TIMED_OUT, W2)}),
            "worker:2 has not started, or the address is wrong or behind a firewall: "
            f"{C} timed out.",
        ),
        (
            known({W0: row(messages.UNRESOLVED, W2)}),
            f"worker:2 has a host name that does not resolve: {C}.",
        ),
        (
            known({W0: row(messages.REFUSED, W2, heard=(W2,))}, hellos=HEARD),
            f"worker:2 runs on host host-of-worker-2, process 7, but is not reached at its address "
            f"{C} by worker:0 (refused): the address is wrong, or a firewall is between.",
        ),
        (
            known({W0: Row(), W1: row(messages.TIMED_OUT, W0)}),
            f"worker:0 runs but is not reached at its address {A} by worker:1 (timed out): the "
            "address is wrong, or a firewall is between.",
        ),
        (
            known({W0: row(messages.REFUSED, W2)}, hellos=HEARD),
            "worker:2 was here (on host host-of-worker-2, process 7) and has ended.",
        ),
        (
            known({W0: row(messages.RUNNING, W2)}),
            f"worker:2 is running already: a TensorFlow server answers at {C}. End the older "
            "process, or start the job when it has ended.",
        ),
        (
            known({W0: row(messages.STRANGER, W2, detail="SSH-2.0")}),
            f"worker:2 is not at its address {C}: another program answers (SSH-2.0). Correct the "
            "address, or end that program.",
        ),
        (
            known({W0: row(messages.OTHER_JOB, W2, detail="ps:0 on host h, process 1")}),
            f"worker:2 is not at its address {C}: another job answers (ps:0 on host h, process 1).",
        ),
        (
            known({W0: Row(complete=True), W1: Row(complete=True)}),
            "worker:2 did not say in time whom they reach.",
        ),
    ],
)
def test_the_task_at_fault_is_named(found: Found, sentence: str) -> None:
    assert explain(found) == sentence


def test_the_matrix_says_who_reaches_whom() -> None:
    found = known({W0: row(messages.REFUSED, W2), W1: Row()})
    assert matrix(found).splitlines() == [
        "  from \\ to  worker:0  worker:1  worker:2",
        "  worker:0   -         ok        refused",
        "  worker:1   ok        -         ok",
        "  worker:2   ?         ?         -",
        f"  worker:0 → worker:2 {C} refused",
        "  nothing is known from worker:2",
    ]


def test_of_a_large_job_the_failing_pairs_are_put_together() -> None:
    cluster = Cluster(worker=tuple(f"10.0.0.{index}:1" for index in range(40)))
    tasks = cluster.tasks()
    rows = {task: row(messages.REFUSED, tasks[39]) for task in tasks[:39]}
    assert matrix(Found(cluster, W0, rows)).splitlines() == [
        "  worker:0, worker:1, worker:2, worker:3, worker:4 and 34 more → worker:39 10.0.0.39:1 "
        "refused",
        "  nothing is known from worker:39",
    ]


def test_names_are_in_the_order_of_a_cluster() -> None:
    assert names([PS, W1, CHIEF, Task("worker", 10), W2]) == (
        "chief:0, worker:1, worker:2, worker:10 and ps:0"
    )


# Meetings.


def test_all_tasks_meet_and_leave_their_ports(three: Cluster) -> None:
    outcomes = met(*(party(three, task) for task in three.tasks()))

    assert [outcome.verdict for outcome in outcomes] == [""] * 3
    assert "worker:2   ok        ok        -" in outcomes[0].matrix
    for task in three.tasks():
        lint.open_port(three, task).close()


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
        monkeypatch.setattr(f"tfdist.preflight.meeting.{pause}", 60.0)
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
    monkeypatch.setattr("tfdist.preflight.meeting._FIRST_NOTICE", 1.5)
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
    elsewhere, open_port = {W0: W0, W1: W2, W2: W1}, lint.open_port
    monkeypatch.setattr(
        lint, "open_port", lambda cluster, task: open_port(cluster, elsewhere[task])
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
    blocked = Row({W2: Reach(messages.TIMED_OUT)}, (W0, W2))

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
    open_port = lint.open_port

    def anywhere(cluster: Cluster, task: Task) -> socket.socket:
        # As if on another machine, where the port is free.
        try:
            return open_port(cluster, task)
        except UsageError:
            return socket.create_server(("", 0))

    monkeypatch.setattr(lint, "open_port", anywhere)
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


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\x00\xff" * 1000,
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS,
        b"{" + b"x" * (3 * LIMIT),
        b"\x80\x04cos\nsystem\n(S'false'\ntR.",
        encode(Row(complete=True)),
        encode(Verdict("a stranger says so")),
    ],
)
@pytest.mark.parametrize("stays", [True, False])
def test_strangers_are_ignored(three: Cluster, words: bytes, stays: bool) -> None:
    meetings = Meetings()
    meetings.start(party(three, W0))
    meetings.start(party(three, W1))
    connections = [dial(three.address(W0)) for _ in range(20)]
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.sendall(words)
        if not stays:
            connection.close()
    meetings.start(party(three, W2))
    assert [outcome.verdict for outcome in meetings.outcomes()] == [""] * 3
    for connection in connections:
        connection.close()


def test_a_stranger_that_says_nothing_is_hung_up_on(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdist.preflight.meeting.PATIENCE", 0.2)
    meetings = Meetings()
    meetings.start(party(three, W0))
    with dial(three.address(W0)) as connection:
        assert connection.recv(1) == b""
    meetings.start(party(three, W1))
    meetings.start(party(three, W2))
    assert [outcome.verdict for outcome in meetings.outcomes()] == [""] * 3


def test_a_stranger_that_is_slow_is_not_waited_for(three: Cluster) -> None:
    meetings = Meetings()
    meetings.start(party(three, W0))
    done = threading.Event()
    connection = dial(three.address(W0))

    def drip() -> None:
        with contextlib.suppress(OSError), connection:
            while not done.wait(0.05):
                connection.sendall(b"{")

    dripping = threading.Thread(target=drip)
    dripping.start()
    meetings.start(party(three, W1))
    meetings.start(party(three, W2))
    assert [outcome.verdict for outcome in meetings.outcomes()] == [""] * 3
    done.set()
    dripping.join()


def test_a_message_that_is_none_ends_a_connection_and_nothing_else(three: Cluster) -> None:
    meetings = Meetings()
    meetings.start(party(three, W0))
    visitor = Visitor(three, W0, hello(three, W1))
    visitor.socket.sendall(b"no message\n")
    while visitor.file.readline():
        pass
    meetings.start(party(three, W1))
    meetings.start(party(three, W2))
    assert [outcome.verdict for outcome in meetings.outcomes()] == [""] * 3


def test_two_jobs_with_tokens_do_not_disturb_each_other() -> None:
    """The second takes the first one's worker 1 for its own."""
    with hold_ports(3) as ports:
        one = workers(ports[:2])
        other = Cluster(worker=(f"127.0.0.1:{ports[2]}", one.address(W1)))
        meetings = Meetings()
        meetings.start(party(other, W0, token="b", timeout=3.0))
        meetings.start(party(one, W1, token="a"))
        time.sleep(1.0)
        meetings.start(party(one, W0, token="a"))
        stray, *rest = meetings.outcomes()
    assert [outcome.verdict for outcome in rest] == ["", ""]
    assert stray.verdict


def test_another_job_at_an_address_is_named(three: Cluster) -> None:
    found, other = met(
        party(three, W0, token="a", timeout=2.0), party(three, W1, token="b", timeout=4.0)
    )
    place = f"worker:1 is not at its address {three.address(W1)}: another job answers (worker:1 on"
    assert place in found.verdict
    assert "another job answers (worker:0 on" in str(other) or "worker:0 " in other.verdict


def test_a_check_does_not_meet_a_training(three: Cluster) -> None:
    first, second = met(
        party(three, W0, timeout=2.0), party(three, W1, timeout=3.0, purpose="check")
    )
    assert "worker:1 is not at its address" in first.verdict
    assert "`tfdist check`" in first.verdict
    assert second.verdict


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "another program answers (SSH-2.0-OpenSSH_9.2p1)"),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", "another program answers (HTTP/1.0 400 Bad Request)"),
        (b"\xff\x1b[2J" * 20, "another program answers"),
        (b"{}\n", "another program answers"),
        (b"{" + b"x" * (2 * LIMIT), "another program answers (a line without end)"),
        (b"{", "connected, and nothing answers"),
        (b"", "connected, and nothing answers"),
        (SETTINGS, "a TensorFlow server is running"),
    ],
)
def test_what_else_answers_at_an_address_is_named(
    three: Cluster, words: bytes, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfdist.preflight.contact.PATIENCE", 0.5)
    with server(three.address(W1), says(words)):
        (outcome,) = met(party(three, W0, timeout=1.5))
    assert f"worker:0 → worker:1 {three.address(W1)} {answer}" in outcome.matrix.splitlines()[4]
    assert "worker:1 is" in outcome.verdict


def test_a_name_that_does_not_resolve_is_named() -> None:
    with hold_ports(1) as (port,):
        cluster = Cluster(worker=(f"127.0.0.1:{port}", "no-such-host.invalid:1"))
        (outcome,) = met(party(cluster, W0, timeout=3.0))
    assert outcome.verdict == (
        "worker:1 has a host name that does not resolve: no-such-host.invalid:1."
    )


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
        meet(party(three, W0))


# The command.


def check(cluster: Cluster, task: Task, *more: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tfdist.cli", "check", *cluster.flags(task), *more],
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_command_meets_and_prints_who_reaches_whom(three: Cluster) -> None:
    processes = [check(three, task) for task in three.tasks()]
    for process in processes:
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 0, output
        assert output.startswith("tfdist: all 3 tasks reach each other (")
        assert "  worker:1   ok        -         ok\n" in output


def test_the_command_names_the_missing_task(three: Cluster) -> None:
    processes = [check(three, task, "--startup-timeout=3") for task in (W0, W1)]
    for process in processes:
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 1, output
        assert "tfdist: error: worker:2 has not started: nothing listens at " in output
        assert f"worker:0 → worker:2 {three.address(W2)} refused" in output


def test_tasks_with_different_tokens_do_not_meet_in_the_command(three: Cluster) -> None:
    processes = [
        check(three, task, "--startup_timeout=3", TFDIST_JOB_TOKEN=token)
        for task, token in ((W0, "a"), (W1, "b"))
    ]
    outputs = [process.communicate(timeout=50)[0] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], outputs
    assert "another job answers" in "".join(outputs)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--worker_hosts=localhost:7,127.0.0.1:7"], "accepted: an address that no other task has"),
        (["--worker_hosts=localhost:1"], "--task_index"),
        (["--worker_hosts=localhost:7,localhost:8", "--strategy=mirrored"], "--strategy"),
        (["--worker_hosts=localhost:7,localhost:8", "--startup_timeout=0"], "startup_timeout"),
        (["--worker_hosts=localhost"], "--worker_hosts[0]"),
    ],
)
def test_the_command_refuses_what_cannot_be_used(
    arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    index = "1" if answer == "--task_index" else "0"
    with pytest.raises(SystemExit) as ended:
        cli.main(["check", "--job_name=worker", f"--task_index={index}", *arguments])
    assert ended.value.code == 2
    assert answer in capsys.readouterr().err


@pytest.mark.parametrize("job_name", ["evaluator", None])
def test_a_task_without_a_cluster_meets_nobody(
    job_name: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    hosts = ["--job_name=evaluator", "--task_index=0", "--worker_hosts=localhost:7,localhost:8"]
    assert cli.main(["check", *(hosts if job_name else [])]) == 0
    assert "has no other task to meet" in capsys.readouterr().out


def test_the_command_imports_no_tensorflow() -> None:
    code = (
        "import sys, tfdist.preflight, tfdist.cli\n"
        "print(sorted({'absl', 'numpy', 'tensorflow'} & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"
