"""Jobs of real processes on this machine: how they end, and that nothing is left of them."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.launchers import DEADLINE, Start, lines_until, outlive
from tfdist.errors import UsageError
from tfdist.tools.launch import local
from tfdist.tools.launch.job_spec import JobSpec
from tfdist.tools.launch.supervision import Supervision

pytestmark = [pytest.mark.stacks("newest", horovod=("2.15",)), pytest.mark.timeout(60)]


def test_each_line_names_its_task_and_keeps_its_order(tfdist_run: Start) -> None:
    launcher = tfdist_run(
        """
        print("one")
        print("two", file=sys.stderr)
        print("three")
        sys.stdout.buffer.write(b"\\xff, and no end")
        """,
        "--workers=2",
    )

    out, err = launcher.communicate(timeout=DEADLINE)

    assert (launcher.returncode, err) == (0, "")
    for name in ("worker:0", "worker:1"):
        mine = [line for line in out.splitlines() if line.startswith(f"[{name}] ")]
        assert mine == [
            f"[{name}] {text}" for text in ("one", "two", "three", "\ufffd, and no end")
        ]


def test_the_first_failure_ends_the_job_and_is_named_with_its_last_lines(
    tfdist_run: Start,
) -> None:
    launcher = tfdist_run(
        """
        if name == "worker:1":
            wait_for("worker:0")
            print(*(f"line {number}" for number in range(1, 31)), sep="\\n")
            sys.exit(3)
        pathlib.Path(name).touch()
        signal.pause()
        """,
        "--workers=2",
        "--grace_period=60",
    )

    _, err = launcher.communicate(timeout=DEADLINE)

    assert launcher.returncode == 3
    assert err.splitlines() == [
        "tfdist: worker:1 failed with exit code 3, ending worker:0",
        "tfdist: the last lines of worker:1:",
        *(f"[worker:1] line {number}" for number in range(11, 31)),
    ]


def test_a_task_that_is_killed_is_a_failure(tfdist_run: Start) -> None:
    launcher = tfdist_run("os.kill(os.getpid(), signal.SIGKILL)")

    _, err = launcher.communicate(timeout=DEADLINE)

    assert launcher.returncode == 128 + signal.SIGKILL
    assert err == "tfdist: worker:0 was killed by signal 9 (Killed)\n"


def test_a_task_that_ignores_sigterm_is_killed(tfdist_run: Start) -> None:
    launcher = tfdist_run(
        """
        if name == "worker:0":
            wait_for("worker:1")
            sys.exit(1)
        on_signal(signal.SIG_IGN, signal.SIGTERM)
        pathlib.Path(name).touch()
        while True:
            signal.pause()
        """,
        "--workers=2",
        "--grace_period=0.2",
    )

    _, err = launcher.communicate(timeout=DEADLINE)

    assert launcher.returncode == 1
    assert err.splitlines() == [
        "tfdist: worker:0 failed with exit code 1, ending worker:1",
        "tfdist: killing worker:1: still running after the grace period",
    ]


def test_what_a_task_has_started_ends_with_it(tfdist_run: Start, tmp_path: Path) -> None:
    launcher = tfdist_run(
        """
        # One write a line, because print makes two, and the pipe has two writers.
        child = "import os, time; os.write(1, b'started\\\\n'); time.sleep(600)"
        for stdout in (None, subprocess.PIPE):
            helper = subprocess.Popen([sys.executable, "-c", child], stdout=stdout)
        helper.stdout.readline()
        os.write(1, b"ready\\n")
        wait_for("go")
        """
    )
    lines_until(launcher, "[worker:0] started", "[worker:0] ready")
    helpers = psutil.Process(launcher.pid).children(recursive=True)
    assert len(helpers) == 3

    (tmp_path / "go").touch()

    _, err = launcher.communicate(timeout=DEADLINE)
    assert (launcher.returncode, err) == (0, "")
    assert outlive(helpers) == []


def test_nothing_that_a_task_wrote_is_lost(tfdist_run: Start, tmp_path: Path) -> None:
    launcher = tfdist_run(
        """
        import fcntl

        fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 19)
        print("ready")
        wait_for("go")
        os.write(1, 50_000 * b"line\\n")
        """
    )
    lines_until(launcher, "[worker:0] ready")
    tasks = psutil.Process(launcher.pid).children()
    # So that the launcher finds the whole output and the end at once.
    launcher.send_signal(signal.SIGSTOP)
    (tmp_path / "go").touch()
    assert outlive(tasks, DEADLINE) == []

    launcher.send_signal(signal.SIGCONT)

    out, _ = launcher.communicate(timeout=DEADLINE)
    assert out == 50_000 * "[worker:0] line\n"


def test_a_filter_of_the_output_may_end_a_moment_after_its_task(tfdist_run: Start) -> None:
    launcher = tfdist_run(
        """
        command = ["sh", "-c", "read _; sleep 0.05; echo last"]
        subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        """
    )
    out, err = launcher.communicate(timeout=DEADLINE)
    assert (launcher.returncode, out, err) == (0, "[worker:0] last\n", "")


def test_a_reader_that_has_left_ends_the_job(tfdist_run: Start) -> None:
    launcher = tfdist_run(
        """
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        while True:
            print("step")
        """
    )
    lines_until(launcher, "[worker:0] step")
    processes = psutil.Process(launcher.pid).children(recursive=True)
    assert len(processes) == 2
    assert launcher.stdout is not None

    launcher.stdout.close()

    assert launcher.wait(timeout=DEADLINE) == 128 + signal.SIGPIPE
    assert launcher.stderr is not None
    said = "tfdist: cannot print the output of the tasks (Broken pipe): ending them\n"
    assert launcher.stderr.read() == said
    assert outlive(processes) == []


def test_a_task_that_outlasts_the_chief_is_named_once(start: Start, tmp_path: Path) -> None:
    launcher = start(["-c", RUN_WITH_LITTLE_PATIENCE, "ps:0"])
    assert launcher.stderr is not None

    said = launcher.stderr.readline()
    (tmp_path / "go").touch()

    _, rest = launcher.communicate(timeout=DEADLINE)
    assert said == "tfdist: worker:0 ended 0.05 s ago, still running: ps:0\n"
    assert (launcher.returncode, rest) == (0, "")


def test_an_evaluator_may_take_its_time(start: Start, tmp_path: Path) -> None:
    launcher = start(["-c", RUN_WITH_LITTLE_PATIENCE, "evaluator:0"])

    _, err = launcher.communicate(timeout=DEADLINE)

    assert (launcher.returncode, err) == (0, "")


# The chief ends immediately, a ps when the test lets it, an evaluator long after that patience.
RUN_WITH_LITTLE_PATIENCE = """
import os, sys
from tfdist.tools.launch.membership import Membership
from tfdist.tools.launch.task_plan import TaskSpec
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.supervisor import Supervisor

ps = "import os, time\\nwhile not os.path.exists('go'): time.sleep(0.01)"
script = ps if sys.argv[1] == "ps:0" else "import time; time.sleep(0.5)"
tasks = [
    TaskSpec("worker:0", (sys.executable, "-c", ""), {}),
    TaskSpec(sys.argv[1], (sys.executable, "-c", script), {}),
]
options = Supervision(shutdown_timeout=0.05)
sys.exit(Supervisor(Membership(tasks), os.environ, options).run())
"""


@pytest.mark.parametrize(
    ("extra", "expected"),
    [({}, "\033[36m[worker:0]\033[0m hello"), ({"NO_COLOR": "1"}, "[worker:0] hello")],
)
def test_a_terminal_gets_colors_unless_they_are_unwanted(
    tfdist_run: Start, extra: dict[str, str], expected: str
) -> None:
    terminal, inner = pty.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        with os.fdopen(inner, "wb", buffering=0) as stdout:
            # Without a panel.
            extra = {**extra, "TERM": "dumb"}
            launcher = tfdist_run("print('hello')", extra=extra, stdout=stdout)
            line = screen.read(1 << 10)
        assert launcher.wait(timeout=DEADLINE) == 0
    assert line.decode().rstrip() == expected


def test_a_held_port_is_for_those_who_were_given_it() -> None:
    with local.hold_ports(3) as ports:
        assert len(set(ports)) == 3
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", ports[0]))
    with socket.socket() as later:
        later.bind(("127.0.0.1", ports[0]))


def test_tensorflow_serves_on_a_held_port() -> None:
    script = """
import sys
import tensorflow as tf

cluster = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{sys.argv[1]}"]})
print(tf.distribute.Server(cluster, job_name="worker", task_index=0).target)
"""
    with local.hold_ports(1) as (port,):
        served = subprocess.run(
            [sys.executable, "-c", script, str(port)],
            capture_output=True,
            text=True,
            timeout=50,
        )

    assert (served.returncode, served.stdout) == (0, f"grpc://127.0.0.1:{port}\n"), served.stderr


@pytest.mark.horovod
def test_the_launcher_serves_horovods_rendezvous(tfdist_run: Start) -> None:
    launcher = tfdist_run(
        """
        import http.client

        host, port = (os.environ[f"HOROVOD_GLOO_RENDEZVOUS_{key}"] for key in ("ADDR", "PORT"))
        rank = os.environ["HOROVOD_RANK"]

        def ask(*request):
            connection = http.client.HTTPConnection(host, int(port))
            connection.request(*request)
            return connection.getresponse()

        ask("PUT", f"/global/{rank}", f"here is {rank}")
        other = f"/global/{1 - int(rank)}"
        while (answer := ask("GET", other)).status != 200:
            time.sleep(0.01)
        print(answer.read().decode(), "TF_CONFIG" in os.environ)
        """,
        "--strategy=horovod",
        "--workers=2",
        extra={"TF_CONFIG": "another job's"},
    )

    out, err = launcher.communicate(timeout=DEADLINE)

    assert (launcher.returncode, err) == (0, "")
    assert sorted(out.splitlines()) == [
        "[worker:0] here is 1 False",
        "[worker:1] here is 0 False",
    ]


@pytest.mark.horovod
def test_without_horovod_its_jobs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", None)
    job = JobSpec(python=sys.executable, script="train.py", strategy="horovod")

    with pytest.raises(UsageError, match="tfdist horovod build"):
        local.launch(job, environ={}, supervision=Supervision())
