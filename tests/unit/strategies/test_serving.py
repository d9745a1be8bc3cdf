"""When a server exits, and with which code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tfdist.cluster import Cluster, Task
from tfdist.coordination import probe
from tfdist.coordination.preemption import Preemption
from tfdist.coordination.probe import Listener
from tfdist.strategies import serving
from tfdist.strategies.serving import serve_until_end

pytestmark = pytest.mark.stacks("2.15", "newest")

POLL = 0.25


class Job:
    """The parts of a strategy that `serve_until_end` uses, and a fake clock."""

    task, startup_timeout, heartbeat_timeout = Task("ps", 0), 60.0, 30.0
    is_restartable = False
    token = "token"
    cluster = Cluster(chief=("a:1",), worker=("b:1",), ps=("c:1",))

    def __init__(self) -> None:
        self.preemption = Preemption()
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        assert seconds == POLL
        self.seconds += seconds

    def serve(self, *others: Task) -> int | None:
        """The exit code; None if the server returns normally."""
        try:
            own: Any = self
            serve_until_end(own, self.preemption, others, watches_chief=False, sleep=self.sleep)
        except SystemExit as error:
            return int(error.code or 0)
        return None


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    job = Job()
    monkeypatch.setattr(serving.time, "monotonic", lambda: job.seconds)
    return job


def find(monkeypatch: pytest.MonkeyPatch, **found: str) -> None:
    """Sets what the probes of each host find, in turn; the last one repeats."""

    def forever(names: Iterable[str]) -> Iterable[Listener]:
        for name in names:
            yield Listener[name.upper()]
        while True:
            yield Listener[name.upper()]

    probes = {host: iter(forever(names.split())) for host, names in found.items()}
    monkeypatch.setattr(probe, "identify", lambda address, _="": next(probes[address[0]]))


@pytest.mark.parametrize(
    ("found", "seconds"),
    [
        ("server server refused", 0.75),
        ("refused refused server refused", 1.0),
        # One failed probe is not enough.
        ("server refused server refused", 1.0),
        ("barrier silent server refused", 1.0),
        # The network may fail for a moment.
        ("server unreachable unreachable unreachable server refused", 1.5),
        ("server unreachable", 3.25),
        ("server unresolved", 3.25),
        ("server other", 3.25),
        # The port refuses connections for a moment while the launcher takes it over.
        ("server refused completed", 0.5),
    ],
)
def test_a_server_exits_when_its_chief_has_exited(
    monkeypatch: pytest.MonkeyPatch, job: Job, found: str, seconds: float
) -> None:
    find(monkeypatch, a=found)
    assert job.serve() is None
    assert job.seconds == seconds


@pytest.mark.parametrize(
    ("is_restartable", "is_requested", "found", "code"),
    [
        (False, False, "server refused", None),
        (False, True, "server refused", 75),
        (True, False, "server refused", 1),
        (True, True, "server refused", 75),
        (True, False, "server refused refused completed", None),
        (True, True, "server completed", None),
        # A server may start so late that it sees nothing else.
        (True, False, "completed", None),
        # A chief that is at the startup barrier again was restarted.
        (True, False, "barrier server silent barrier", 1),
        (True, False, "server barrier silent server refused", 1),
    ],
)
def test_the_exit_code_distinguishes_a_lost_chief_from_a_completed_one(
    monkeypatch: pytest.MonkeyPatch,
    job: Job,
    is_restartable: bool,
    is_requested: bool,
    found: str,
    code: int | None,
) -> None:
    job.is_restartable, job.preemption.is_requested = is_restartable, is_requested
    find(monkeypatch, a=found)
    assert job.serve() == code


def test_a_restartable_server_gives_the_launcher_time_to_send_the_completion_notice(
    monkeypatch: pytest.MonkeyPatch, job: Job
) -> None:
    job.is_restartable = True
    find(monkeypatch, a="server refused")
    assert job.serve() == 1
    assert job.seconds == 3.25


def test_a_chief_that_never_starts_is_an_error(
    monkeypatch: pytest.MonkeyPatch, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    find(monkeypatch, a="refused")
    assert job.serve() == 1
    assert job.seconds == job.startup_timeout
    assert "error: chief:0 has not started within 60 s" in capsys.readouterr().err


@pytest.mark.parametrize("chief", ["refused", "completed refused"])
def test_a_ps_serves_a_worker_that_exits_after_the_chief(
    monkeypatch: pytest.MonkeyPatch, job: Job, chief: str
) -> None:
    find(monkeypatch, a=f"server {chief}", b="server server barrier silent refused")
    assert job.serve(Task("worker", 0)) is None
    assert job.seconds == (1.25 if "completed" in chief else 1.5)


def test_a_ps_does_not_wait_for_a_stopped_worker_for_ever(
    monkeypatch: pytest.MonkeyPatch, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    find(monkeypatch, a="server refused", b="server silent server silent")
    assert job.serve(Task("worker", 0)) is None
    assert job.seconds == pytest.approx(job.heartbeat_timeout, abs=2.0)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "lost" in line]
    assert line == (
        "tfdist: worker:0 was lost: it has not answered for 30 s (--heartbeat_timeout), and "
        "chief:0 has exited"
    )


def test_an_unreachable_worker_may_come_back(monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    find(monkeypatch, a="server refused", b="unreachable unreachable server refused")
    assert job.serve(Task("worker", 0)) is None
    assert job.seconds == 1.25
