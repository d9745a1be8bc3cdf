"""What the launcher says about a job that does not fail, but is not what the user wants."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.launchers import DEADLINE, Start
from tfdist.tools.launch.notices import Notices
from tfdist.tools.launch.task_plan import TaskSpec

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket that is bound, and does not listen yet, as the launcher holds a port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def process_of(name: str, pid: int = -1, **options: Any) -> Any:
    task = TaskSpec(name, (), {}, **options)
    return SimpleNamespace(name=name, pid=pid, task=task, last_lines=[])


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of `Notices`."""
    clock = Clock()
    monkeypatch.setattr("tfdist.tools.launch.notices.time", clock)
    return clock


def workers(port: int, **options: Any) -> tuple[Any, ...]:
    return tuple(process_of(f"worker:{index}", port=port, **options) for index in (0, 1))


def test_a_job_whose_tasks_do_not_meet_is_told_once(
    listener: socket.socket, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = workers(listener.getsockname()[1])
    notices = Notices(processes)
    assert notices.look()
    clock.now += 59.0
    assert notices.look()
    assert capsys.readouterr().err == ""
    clock.now += 2.0
    assert not notices.look()
    notices.on_success(processes[0])
    told = capsys.readouterr().err
    assert told.count("warning: no task has joined the others after 60 s.") == 1
    assert told.count("\n") == 1


def test_an_epoch_of_a_task_that_has_not_met_the_others_is_told(
    listener: socket.socket, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = workers(listener.getsockname()[1])
    notices = Notices(processes)
    processes[1].last_lines.append("Epoch 1/3")
    assert not notices.look()
    told = capsys.readouterr().err
    assert told.startswith("tfdist: warning: a task trains, and no task has joined the others. A")
    listener.listen()
    assert not Notices(processes).look()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("seconds", [4.0, 6.0])
def test_the_end_of_a_task_decides(
    seconds: float, listener: socket.socket, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = workers(listener.getsockname()[1])
    notices = Notices(processes)
    clock.now += seconds
    notices.on_success(processes[0])
    notices.on_success(processes[1])
    told = capsys.readouterr().err
    assert told.count("worker:0 has ended, and no task had joined the others") == (seconds > 5)


def test_a_task_that_listens_has_joined(
    listener: socket.socket, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = workers(listener.getsockname()[1])
    notices = Notices(processes)
    listener.listen()
    assert not notices.look()
    clock.now += 100.0
    assert not notices.look()
    assert capsys.readouterr().err == ""


def test_a_connection_to_the_rendezvous_joins(
    listener: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    port = listener.getsockname()[1]
    processes = tuple(process_of(f"worker:{index}", rendezvous_port=port) for index in (0, 1))
    notices = Notices(processes)
    listener.listen()
    assert notices.look(), "the launcher itself listens"
    with socket.create_connection(("127.0.0.1", port)):
        assert not notices.look()


def test_a_rendezvous_on_another_machine_joins(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    notices = Notices((process_of("worker:1", rendezvous_port=port),))
    listener.listen()
    client = socket.create_connection(("127.0.0.1", port))
    server, _ = listener.accept()
    # Only the client's end stays, as on the machine of a rank that has asked the rendezvous.
    client.close()
    assert server.recv(1) == b""
    server.close()
    assert not notices.look()


def test_tasks_without_others_are_not_watched() -> None:
    assert not Notices((process_of("worker:0"),)).look()


@pytest.mark.parametrize("chief", [False, True])
def test_servers_without_a_chief_that_do_nothing(
    chief: bool, listener: socket.socket, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    listener.listen()
    names = ["ps:0", "worker:0", *(["chief:0"] if chief else [])]
    processes = tuple(process_of(name, port=listener.getsockname()[1]) for name in names)
    notices = Notices(processes)
    assert notices.look() is not chief
    clock.now += 31.0
    assert not notices.look()
    assert ("all tasks have been idle for 30 s" in capsys.readouterr().err) is not chief


def test_busy_tasks_are_not_idle(
    listener: socket.socket, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    listener.listen()
    command = "import time\nwhile time.process_time() < 1: pass\nprint(flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, start_new_session=True
    ) as busy:
        assert busy.stdout is not None
        processes = (process_of("ps:0"), process_of("worker:0", busy.pid))
        notices = Notices(processes)
        assert notices.look()
        busy.stdout.read(1)
        clock.now += 31.0
        assert notices.look()
        assert capsys.readouterr().err == ""
        busy.kill()


SCRIPT = "import time; time.sleep(5.5)"


def test_a_script_that_does_not_distribute(start: Start, tmp_path: Any) -> None:
    (tmp_path / "alone.py").write_text(SCRIPT)
    launcher = start(["-m", "tfdist", "run", "--workers=2", "--start_method=spawn", "alone.py"])
    _, errors = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == os.EX_OK
    assert errors.count("no task had joined the others") == 1
