"""Elastic jobs with parameter servers: which workers start, join and leave."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.launchers import DEADLINE, HEADER, Start
from tfdist.cluster.task_counts import TaskCounts
from tfdist.config.launch_options import ElasticOptions
from tfdist.errors import UsageError
from tfdist.tools.launch.elastic_workers import ElasticWorkers
from tfdist.tools.launch.job_spec import JobSpec

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


@pytest.fixture
def members(tmp_path: Path) -> Callable[..., ElasticWorkers]:
    """Makes members whose program lists what is in the file `hosts`."""

    def make(**options: object) -> ElasticWorkers:
        given = {"max_workers": 3, "host_discovery_script": f"cat {tmp_path / 'hosts'}", **options}
        followed = ElasticOptions(**given)  # type: ignore[arg-type]
        counts = TaskCounts(chief=1, worker=3, ps=1)
        job = JobSpec(
            python="python", script="train.py", strategy="parameter_server", counts=counts
        )
        ports = (4001, 4002, 4003, 4004, 4005)
        return ElasticWorkers(job=job, options=followed, ports=ports, environ={})

    return make


def moves(found: ElasticWorkers) -> tuple[list[str], list[str]]:
    """The names of those that join and that leave, as soon as there are any."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        come, leave = found.moves()
        if come or leave:
            return names(come), names(leave)
        time.sleep(0.05)
    raise TimeoutError


def names(tasks: object) -> list[str]:
    return [task.name for task in tasks]  # type: ignore[attr-defined]


def test_workers_follow_the_slots(
    tmp_path: Path, members: Callable[..., ElasticWorkers], capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    found = members()
    tasks = found.tasks()
    assert names(tasks) == ["chief:0", "worker:0", "worker:1", "worker:2", "ps:0"]
    assert names(filter(found.is_there, tasks)) == ["chief:0", "worker:0", "ps:0"]
    assert all(task.restarts_alone for task in tasks if task.kind.trains and not task.kind.leads)

    hosts.write_text("localhost:2\n127.0.0.1:9\n")
    assert moves(found) == (["worker:1", "worker:2"], [])
    hosts.write_text("localhost:0\n")
    # As many as --min_workers stay.
    assert moves(found) == ([], ["worker:1", "worker:2"])
    hosts.unlink()
    assert found.moves() == ((), ())
    found.close()
    said = capsys.readouterr().err
    assert "1 of 3 workers on localhost:1" in said
    assert "the hosts are now no host: worker:1, worker:2 leave" in said


def test_the_job_waits_for_slots(
    tmp_path: Path, members: Callable[..., ElasticWorkers], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts").write_text("localhost:1\n")
    assert members(min_workers=2).tasks() == ()
    assert "waiting for --min_workers=2" in capsys.readouterr().err


def test_slots_of_another_machine_are_refused(
    tmp_path: Path, members: Callable[..., ElasticWorkers], capsys: pytest.CaptureFixture[str]
) -> None:
    # 192.0.2.0/24 is reserved for documentation (RFC 5737).
    (tmp_path / "hosts").write_text("192.0.2.1:1\nlocalhost:2\n")
    with pytest.raises(UsageError, match="this machine alone with --strategy=parameter_server"):
        members().tasks()
    # Later, the job goes on.
    (tmp_path / "hosts").write_text("localhost:2\n")
    found = members()
    found.tasks()
    (tmp_path / "hosts").write_text("192.0.2.1:1\n")
    deadline = time.monotonic() + DEADLINE
    said = ""
    while "continuing with the previous hosts" not in said and time.monotonic() < deadline:
        assert found.moves() == ((), ())
        said += capsys.readouterr().err
        time.sleep(0.05)
    assert "this machine alone with --strategy=parameter_server" in said
    found.close()


# A worker that leaves needs a moment, in which it may be asked to come back.
SCRIPT = """
if name.startswith("worker"):
    leaving = pathlib.Path(f"{name}.leaving")
    with open(f"{name}.started", "a") as file:
        file.write("!" if leaving.exists() else "x")

    def leave(*_):
        leaving.touch()
        time.sleep(8)
        leaving.unlink()
        sys.exit(0)

    on_signal(leave, signal.SIGTERM)
    while True:
        time.sleep(0.1)
if name.startswith("ps"):
    time.sleep(100)
wait_for("end")
"""


def test_a_launcher_starts_and_ends_single_workers(start: Start, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HEADER + SCRIPT)
    hosts = tmp_path / "hosts"

    def slots(number: int) -> None:
        (tmp_path / "new").write_text(f"localhost:{number}\n")
        (tmp_path / "new").rename(hosts)

    slots(1)
    arguments = ["-m", "tfdist", "run", "--strategy=parameter_server", "--ps=1", "--max_workers=3"]
    arguments += [f"--host_discovery_script=cat {hosts}", "--start_method=spawn", "script.py"]
    launcher = start(arguments)

    def wait_for_starts(name: str, number: int) -> None:
        path = tmp_path / f"{name}.started"
        deadline = time.monotonic() + DEADLINE
        while not (path.exists() and len(path.read_text()) == number):
            assert time.monotonic() < deadline, f"{name}: {list(tmp_path.iterdir())}"
            time.sleep(0.05)

    wait_for_starts("worker:0", 1)
    slots(3)
    wait_for_starts("worker:2", 1)
    slots(2)
    time.sleep(3.0)
    slots(3)
    wait_for_starts("worker:2", 2)
    assert (tmp_path / "worker:2.started").read_text() == "xx", "the first one had left"
    (tmp_path / "end").touch()
    _, errors = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == os.EX_OK, errors
    assert "the hosts are now localhost:3: worker:1, worker:2 join" in errors
    assert "the hosts are now localhost:2: worker:2 leave" in errors
    assert (tmp_path / "worker:0.started").read_text() == "x"
