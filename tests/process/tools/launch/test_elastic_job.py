"""Jobs that follow the hosts that a program lists: what is started, waited for and refused."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.launchers import DEADLINE, Start, lines_until
from tfdist.config.launch_options import ElasticOptions
from tfdist.errors import UsageError
from tfdist.tools.commands import cli
from tfdist.tools.launch import host_discovery
from tfdist.tools.launch.elastic_job import ElasticMembership
from tfdist.tools.launch.host_discovery import Host, HostDiscoveryScript, parse
from tfdist.tools.launch.job_spec import JobSpec, TaskSpec

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]

PORTS = (4001, 4002, 4003)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a:2", "b:1"], [Host("a", 2), Host("b", 1)]),
        (["b", "a", "[::1%lo]:3"], [Host("b", 1), Host("a", 1), Host("[::1%lo]", 3)]),
        (["", "  a:1  # the first", "# none", "b:0"], [Host("a", 1)]),
        ([], []),
    ],
)
def test_what_the_program_prints(lines: list[str], expected: list[Host]) -> None:
    assert parse(lines) == tuple(expected)


@pytest.mark.parametrize(
    ("line", "problem"),
    [("a:two", "'a:two' is not"), (":2", "':2' is not"), ("a b:2", "is not"), ("a:-1", "is not")],
)
def test_a_line_that_is_no_host(line: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse([line])
    with pytest.raises(ValueError, match="a is listed twice"):
        parse(["a:1", "a:2"])


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("/no/such/program", "cannot be started: No such file"),
        ("false", "it ended with code 1"),
        ("echo a:b", "is not host:slots"),
        ("'", "No closing quotation"),
        ("", "it is empty"),
    ],
)
def test_a_program_that_cannot_be_used(command: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as raised:
        HostDiscoveryScript(command).read()
    assert raised.value.field == "--host_discovery_script"
    assert raised.value.received == command


def test_a_program_is_asked_without_waiting_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_discovery, "ANSWER_SECONDS", 0.2)
    script = HostDiscoveryScript("sleep 60")
    asked = script.ask()
    assert next(asked) is None
    assert next(asked) is None
    asked.close()
    started = time.monotonic()
    with pytest.raises(UsageError, match=r"it has not ended within 0\.2 s"):
        script.read()
    assert time.monotonic() - started < 30


def test_a_program_may_print_much() -> None:
    code = "print('#' * 200000); print('b:1'); print('a:1')"
    hosts = HostDiscoveryScript(f'{sys.executable} -c "{code}"').read()
    assert hosts == (Host("a", 1), Host("b", 1))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_workers": 2, "min_workers": 0}, "--min_workers"),
        ({"max_workers": 2, "min_workers": 3}, "--max_workers"),
        ({"max_workers": 2, "port": 0}, "--port"),
        ({"max_workers": 2, "port": 65535}, "--port"),
    ],
)
def test_numbers_that_contradict_each_other(options: dict[str, int | None], field: str) -> None:
    with pytest.raises(UsageError) as raised:
        ElasticOptions(host_discovery_script="true", **options)  # type: ignore[arg-type]
    assert raised.value.field == field


@pytest.fixture
def members(tmp_path: Path) -> Callable[..., ElasticMembership]:
    """Makes members whose program lists what is in the file `hosts`."""

    def make(**options: object) -> ElasticMembership:
        given = {"max_workers": 3, "host_discovery_script": f"cat {tmp_path / 'hosts'}", **options}
        job = JobSpec(python="python", script="train.py", strategy="horovod")
        followed = ElasticOptions(**given)  # type: ignore[arg-type]
        return ElasticMembership(job=job, options=followed, ports=PORTS, environ={})

    return make


def workers(task: TaskSpec) -> list[str]:
    found: list[str] = json.loads(task.environment["TF_CONFIG"])["cluster"]["worker"]
    return found


def test_the_tasks_of_this_machine(
    tmp_path: Path, members: Callable[..., ElasticMembership]
) -> None:
    (tmp_path / "hosts").write_text("localhost:8\n127.0.0.1:1\n")
    tasks = members().tasks()
    assert [task.name for task in tasks] == ["worker:0", "worker:1", "worker:2"]
    assert workers(tasks[0]) == ["127.0.0.1:4001", "localhost:4002", "localhost:4003"]
    assert tasks[0].environment["TFDIST_STRATEGY"] == "horovod"
    # 192.0.2.0/24 is reserved for documentation (RFC 5737).
    (tmp_path / "hosts").write_text("192.0.2.1:1\nlocalhost:2\n")
    tasks = members(port=2222).tasks()
    assert [task.name for task in tasks] == ["worker:1", "worker:2"]
    assert workers(tasks[0]) == ["192.0.2.1:2222", "localhost:2222", "localhost:2223"]
    (task,) = members(port=2222, host="192.0.2.1").tasks()
    assert task.name == "worker:0"
    with pytest.raises(UsageError, match="--port: received None"):
        members().tasks()


def test_the_job_waits_for_hosts(
    tmp_path: Path, members: Callable[..., ElasticMembership], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts").write_text("localhost:1\n")
    few = members(min_workers=2)
    assert few.tasks() == few.tasks() == ()
    said = capsys.readouterr().err
    assert said == (
        "tfdist: waiting for --min_workers=2: --host_discovery_script lists localhost:1\n"
    )
    (tmp_path / "hosts").write_text("localhost:2\n")
    assert len(few.tasks()) == 2
    (tmp_path / "hosts").write_text("")
    elsewhere = members(host="me", elastic_timeout=0)
    assert elsewhere.tasks() == ()
    with pytest.raises(TimeoutError, match=r"0 s \(--elastic_timeout\) for me to be listed"):
        elsewhere.tasks()


def change(found: ElasticMembership) -> str | None:
    """The message after the program was asked again."""
    found.change()
    deadline = time.monotonic() + DEADLINE
    while (said := found.change()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return said


def test_news_is_what_changes_the_tasks(
    tmp_path: Path, members: Callable[..., ElasticMembership], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hosts"
    file.write_text("localhost:3\n")
    found = members()
    found.tasks()
    # Slots beyond --max_workers change nothing.
    file.write_text("localhost:5\n")
    for _ in range(5):
        assert found.change() is None
        time.sleep(0.05)
    file.write_text("localhost:1\n")
    assert change(found) == "the hosts are now localhost:1"
    assert len(found.tasks()) == 1
    # Whoever cannot say what there is has no news, and the job goes on with what there was.
    file.unlink()
    for _ in range(5):
        assert found.change() is None
        time.sleep(0.05)
    assert len(found.tasks()) == 1
    assert capsys.readouterr().err.count("warning: continuing with the previous hosts") == 1
    found.close()


def test_a_program_that_fails_at_first_is_a_mistake(
    members: Callable[..., ElasticMembership],
) -> None:
    with pytest.raises(UsageError, match="it ended with code 1"):
        members().tasks()


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (["--min_workers=2"], "--min_workers"),
        (["--port=2222"], "--port"),
        (["--host_discovery_script=true", "--max_workers=2"], "--strategy"),
        (["--host_discovery_script=true", "--strategy=horovod"], "--max_workers"),
        (["--host_discovery_script=true", "--max_workers=2", "--workers=2"], "--workers"),
        (["--host_discovery_script=true", "--max_workers=2", "--dry-run"], "--dry_run"),
        (["--host_discovery_script=true", "--max_workers=2", "--job_name=worker"], "--job_name"),
        (
            ["--host_discovery_script=false", "--strategy=horovod", "--max_workers=2"],
            "--host_discovery_script",
        ),
    ],
)
def test_mistakes_of_usage(
    flags: list[str],
    field: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(SystemExit) as ended:
        # A fork server would be that of all tests of this process.
        cli.main(["run", "--start_method=spawn", *flags, str(script)])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"tfdist: error: {field}: received ")
    assert err.count("\n") == 1


# Leaves as a training does, and ends when the file `end` is there.
TASK = """
index = task["index"]
on_signal(lambda *_: sys.exit(75), signal.SIGTERM)
print(len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]), "workers")
wait_for("end")
"""


def elastic(tmp_path: Path, *more: str) -> list[str]:
    flags = ["--strategy=horovod", f"--host_discovery_script=cat {tmp_path / 'hosts'}"]
    return [*flags, "--max_workers=3", *more]


def test_all_start_again_in_the_new_number(tfdist_run: Start, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost:2\n")
    launcher = tfdist_run(TASK, *elastic(tmp_path))
    lines_until(launcher, "[worker:0] 2 workers", "[worker:1] 2 workers")
    (tmp_path / "hosts").write_text("localhost:1\n")
    lines_until(launcher, "[worker:0] 1 workers")
    (tmp_path / "hosts").write_text("localhost:3\n")
    lines_until(launcher, "[worker:0] 3 workers", "[worker:1] 3 workers", "[worker:2] 3 workers")
    (tmp_path / "end").touch()
    _, err = launcher.communicate(timeout=DEADLINE)
    assert (launcher.returncode, err.splitlines()) == (
        0,
        [
            "tfdist: 2 workers on localhost:2",
            "tfdist: the hosts are now localhost:1: all tasks save and restart",
            "tfdist: 1 worker on localhost:1",
            "tfdist: the hosts are now localhost:3: all tasks save and restart",
            "tfdist: 3 workers on localhost:3",
        ],
    )


def test_a_signal_meanwhile_is_not_the_second_for_the_tasks(
    tfdist_run: Start, tmp_path: Path
) -> None:
    script = """
        def leave(*_):
            on_signal(lambda *_: os._exit(143), signal.SIGTERM)
            print("saving")
            wait_for("saved")
            sys.exit(75)
        on_signal(leave, signal.SIGTERM)
        print("trains")
        wait_for("end")
    """
    (tmp_path / "hosts").write_text("localhost:2\n")
    launcher = tfdist_run(script, *elastic(tmp_path))
    lines_until(launcher, "[worker:0] trains", "[worker:1] trains")
    (tmp_path / "hosts").write_text("localhost:1\n")
    lines_until(launcher, "[worker:0] saving", "[worker:1] saving")
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.5)  # A task that it reached would have ended.
    (tmp_path / "saved").touch()
    launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 75


def test_a_job_that_has_ended_before_it_could_leave_is_complete(
    tfdist_run: Start, tmp_path: Path
) -> None:
    script = """
        on_signal(lambda *_: sys.exit(0), signal.SIGTERM)
        print("ends")
        wait_for("end")
    """
    (tmp_path / "hosts").write_text("localhost:2\n")
    launcher = tfdist_run(script, *elastic(tmp_path))
    lines_until(launcher, "[worker:0] ends", "[worker:1] ends")
    (tmp_path / "hosts").write_text("localhost:1\n")
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 0
    assert err.count("workers on") == 1


def test_a_job_that_waits_can_be_ended(tfdist_run: Start, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("")
    launcher = tfdist_run(TASK, *elastic(tmp_path))
    assert launcher.stderr is not None
    assert "waiting for this machine to be listed" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=DEADLINE) == 128 + signal.SIGTERM


def test_a_job_waits_no_longer_than_it_was_told(tfdist_run: Start, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost:1\n")
    launcher = tfdist_run(TASK, *elastic(tmp_path, "--min_workers=2", "--elastic_timeout=0.5"))
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 1
    assert err.splitlines()[-1] == (
        "tfdist: error: waited 0.5 s (--elastic_timeout) for --min_workers=2: "
        "--host_discovery_script lists localhost:1"
    )


def test_tasks_that_leave_by_themselves_start_again(tfdist_run: Start, tmp_path: Path) -> None:
    script = """
        if not pathlib.Path("left").exists():
            pathlib.Path("left").touch()
            sys.exit(75)
    """
    (tmp_path / "hosts").write_text("localhost:1\n")
    launcher = tfdist_run(script, *elastic(tmp_path, "--restart_delay=0.05"))
    _, err = launcher.communicate(timeout=DEADLINE)
    assert (launcher.returncode, err.splitlines()) == (
        0,
        [
            "tfdist: 1 worker on localhost:1",
            "tfdist: worker:0 was preempted, saved a checkpoint and exited with code 75: "
            "reading the list of hosts again",
            "tfdist: 1 worker on localhost:1",
        ],
    )
