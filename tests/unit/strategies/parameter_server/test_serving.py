"""How a task that serves learns that the chief has ended."""

from __future__ import annotations

import socket

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.coordination import shutdown
from tfdist.coordination.preemption import Preemption
from tfdist.coordination.shutdown import Listener
from tfdist.strategies.parameter_server.serving import serve_until_end, wait_for_end


@pytest.mark.parametrize(
    ("answers", "patience"),
    [
        ("up down down down", 3),
        ("up down", 1),
        ("up up up down down down", 3),
        ("down down down down down up down down down", 3),
        ("up down down up down up down down down", 3),
    ],
)
def test_it_ends_after_patience_misses_in_a_row_once_it_was_up(answers: str, patience: int) -> None:
    asked: list[str] = []
    slept: list[float] = []
    coming = iter(answers.split())

    def is_up(address: str) -> bool:
        asked.append(address)
        return next(coming) == "up"

    wait_for_end("a:1", is_up=is_up, sleep=slept.append, patience=patience, interval=lambda: 0.5)

    assert list(coming) == []
    assert asked == ["a:1"] * len(answers.split())
    assert slept == [0.5] * (len(asked) - 1)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_sees_a_real_socket_close(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.create_server((host, 0), family=family)
    port = server.getsockname()[1]
    slept = 0

    def sleep(seconds: float) -> None:
        nonlocal slept
        slept += 1
        assert slept < 20
        if slept == 1:
            server.close()

    def is_up(address: str) -> bool:
        return shutdown.listener(address) in shutdown.UP

    wait_for_end(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", sleep=sleep, is_up=is_up)

    assert slept == 3


def test_what_has_never_come_is_waited_for_until_the_timeout() -> None:
    slept: list[float] = []
    assert not wait_for_end(
        "a:1", is_up=lambda _: False, sleep=slept.append, startup_timeout=5.0, interval=lambda: 0.5
    )
    assert slept == [0.5] * 10


class Job:
    """As much of a job as a server's end needs."""

    task, startup_timeout, heartbeat_timeout = Task("ps", 0), 60.0, 30.0
    for_estimators = True
    cluster = Cluster(chief=("a:1",), worker=("b:1",), ps=("c:1",))

    def __init__(self, *, is_restartable: bool, is_requested: bool = False) -> None:
        self.is_restartable = is_restartable
        self.preemption = Preemption()
        self.preemption.is_requested = is_requested


@pytest.mark.parametrize(
    ("is_restartable", "is_requested", "heard", "code"),
    [
        (False, False, "server nobody nobody nobody", None),
        (False, True, "server nobody nobody nobody", 75),
        (True, False, "server nobody nobody nobody", 1),
        (True, True, "server nobody nobody nobody", 75),
        (True, False, "server farewell nobody nobody", None),
        # A leader that is in a meeting again has been started again.
        (True, False, "meeting nobody silent server silent meeting meeting meeting", 1),
        (True, False, "server meeting silent server nobody nobody nobody", 1),
        (True, True, "server farewell nobody nobody", None),
    ],
)
def test_a_server_tells_a_leader_that_was_lost_from_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
    is_restartable: bool,
    is_requested: bool,
    heard: str,
    code: int | None,
) -> None:
    coming = iter(heard.split())

    def listener(_: str) -> Listener:
        return Listener[next(coming).upper()]

    monkeypatch.setattr(shutdown, "listener", listener)
    waited: list[str] = []
    monkeypatch.setattr(shutdown, "wait_for_hang_up", lambda address, _: waited.append(address))
    job = Job(is_restartable=is_restartable, is_requested=is_requested)
    ended = None
    slept: set[float] = set()
    try:
        serve_until_end(job, sleep=slept.add)  # type: ignore[arg-type]
    except SystemExit as error:
        ended = error.code
    assert ended == code
    # Whoever watches over a leader is given time to answer in its place.
    assert slept == ({1.0} if is_restartable else {0.02})
    assert waited == ([] if is_restartable else ["a:1"])


def test_a_leader_that_hangs_up_is_looked_for_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may close what the leader listens at after the leader's connections."""
    coming = iter(["server", "silent", "nobody", "nobody", "nobody"])
    monkeypatch.setattr(shutdown, "listener", lambda _: Listener[next(coming).upper()])
    monkeypatch.setattr(shutdown, "wait_for_hang_up", lambda *_: None)
    slept: list[float] = []
    serve_until_end(Job(is_restartable=False), sleep=slept.append)  # type: ignore[arg-type]
    assert slept == [0.02] * 3


def test_one_that_hangs_up_again_and_again_is_looked_for_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coming = iter(["server", *["silent"] * 30, *["nobody"] * 3])
    monkeypatch.setattr(shutdown, "listener", lambda _: Listener[next(coming).upper()])
    monkeypatch.setattr(shutdown, "wait_for_hang_up", lambda *_: None)
    slept: list[float] = []
    serve_until_end(Job(is_restartable=False), sleep=slept.append)  # type: ignore[arg-type]
    assert slept == [*[0.02] * 25, *[1.0] * 5, *[0.02] * 2]


def test_a_leader_that_cannot_be_reached_is_looked_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = ["nobody", "meeting", "server", "unreachable", "server", *["unreachable"] * 3]
    coming = iter(heard)
    monkeypatch.setattr(shutdown, "listener", lambda _: Listener[next(coming).upper()])
    slept: list[float] = []
    monkeypatch.setattr(shutdown, "wait_for_hang_up", lambda _, seconds: slept.append(-seconds))
    serve_until_end(Job(is_restartable=False), sleep=slept.append)  # type: ignore[arg-type]
    assert slept == [1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 1.0]


def test_a_task_that_cannot_be_reached_is_looked_for_longer_where_another_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coming = iter(["server", *["unreachable", "nobody"] * 3])
    monkeypatch.setattr(shutdown, "listener", lambda _: Listener[next(coming).upper()])
    slept: list[float] = []
    monkeypatch.setattr(shutdown, "wait_for_hang_up", lambda _, seconds: slept.append(-seconds))
    others = [Task("worker", 0)]
    serve_until_end(Job(is_restartable=False), others, sleep=slept.append)  # type: ignore[arg-type]
    assert slept == [-1.0, 1.0, 1.0]


def test_a_worker_that_outlasts_the_leader_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = {"a:1": iter(["server", *["nobody"] * 4]), "b:1": iter(["server", *["nobody"] * 3])}
    monkeypatch.setattr(shutdown, "listener", lambda where: Listener[next(heard[where]).upper()])
    waited: list[str] = []
    monkeypatch.setattr(shutdown, "wait_for_hang_up", lambda address, _: waited.append(address))
    slept: list[float] = []
    others = [Task("worker", 0)]
    serve_until_end(Job(is_restartable=False), others, sleep=slept.append)  # type: ignore[arg-type]
    assert waited == ["a:1", "b:1"]
    assert slept == [0.02, 0.02]
