"""Servers that never end by themselves: they are ended when no task trains any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launchers import DEADLINE, Start

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]

# Runs a job from the names and scripts of its tasks.
RUN = """
import os, sys
from tfdist.tools.launch.membership import Membership
from tfdist.tools.launch.task_plan import TaskSpec
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.supervisor import Supervisor

compute = "import time; end = time.monotonic() + 3\\nwhile time.monotonic() < end: pass"
scripts = {
    "succeeds": "",
    "fails": "import time; time.sleep(0.1); raise SystemExit(3)",
    "sleeps": "import time; time.sleep(1); open('ended', 'w').close()",
    "is stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "serves": "import signal; signal.pause()",
    "is killed": "import os, signal, time; time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)",
    "serves to the end": "import os, time\\nwhile not os.path.exists('ended'): time.sleep(0.01)\\n"
    "time.sleep(0.05); open('left', 'w').close()",
    "trains": f"{compute}\\nopen('ended', 'w').close()",
    "trains in a child": f"import subprocess, sys\\n"
    f"subprocess.run([sys.executable, '-c', {compute!r}])\\nopen('ended', 'w').close()",
}
tasks = []
for argument in sys.argv[1:]:
    name, _, script = argument.partition("=")
    serves = script == "is killed"
    tasks.append(TaskSpec(name, (sys.executable, "-c", scripts[script]), {}, serves=serves))
supervision = Supervision(server_timeout=1.0)
sys.exit(Supervisor(Membership(tasks), os.environ, supervision).run())
"""


def run(start: Start, *tasks: str) -> tuple[int, str]:
    """Runs a job of tasks like `worker:0=trains`; returns its exit code and errors."""
    launcher = start(["-c", RUN, *tasks])
    _, errors = launcher.communicate(timeout=DEADLINE)
    return launcher.returncode, errors


def test_a_ps_ends_after_the_last_worker(start: Start, tmp_path: Path) -> None:
    """A worker that sleeps may wait for its data. A ps may end by itself."""
    tasks = ("worker:0=succeeds", "worker:1=sleeps", "ps:0=serves", "ps:1=serves to the end")
    assert run(start, *tasks) == (0, "")
    assert (tmp_path / "ended").exists()
    assert (tmp_path / "left").exists()


@pytest.mark.parametrize(("worker", "is_ended"), [("is stopped", True), ("trains", False)])
def test_without_a_ps_a_stopped_worker_is_ended(
    start: Start, tmp_path: Path, worker: str, is_ended: bool
) -> None:
    code, errors = run(start, "worker:0=succeeds", f"worker:1={worker}", "ps:0=succeeds")
    assert code == 0
    assert ("tfdist: ending worker:1: " in errors) == is_ended
    assert (tmp_path / "ended").exists() != is_ended


def test_a_server_that_is_killed_after_the_training_fails_nothing(start: Start) -> None:
    code, errors = run(start, "worker:0=succeeds", "worker:1=is killed")
    assert code == 0
    assert errors == (
        "tfdist: worker:1 was killed by signal 9 (Killed), after the training was complete\n"
    )


def test_workers_that_serve_end_after_their_chief(start: Start) -> None:
    code, errors = run(
        start, "chief:0=succeeds", "worker:0=serves", "worker:1=serves", "ps:0=serves"
    )
    assert code == 0
    assert errors == "tfdist: ending worker:0, worker:1: idle since chief:0 has ended\n"


@pytest.mark.parametrize("trains", ["trains", "trains in a child"])
def test_a_worker_that_trains_longer_than_its_chief_is_left_alone(
    start: Start, tmp_path: Path, trains: str
) -> None:
    assert run(start, "chief:0=succeeds", f"worker:0={trains}", "ps:0=serves") == (0, "")
    assert (tmp_path / "ended").exists()


def test_an_evaluator_is_left_alone(start: Start, tmp_path: Path) -> None:
    assert run(start, "worker:0=succeeds", "ps:0=serves", "evaluator:0=sleeps") == (0, "")
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("chief", ["trains", "succeeds"])
def test_a_worker_that_fails_fails_the_job(start: Start, chief: str) -> None:
    """Before the chief has ended, and after."""
    code, errors = run(start, f"worker:0={chief}", "worker:1=fails", "ps:0=serves")
    assert code == 3
    assert errors.startswith("tfdist: worker:1 failed with exit code 3, ending ")
