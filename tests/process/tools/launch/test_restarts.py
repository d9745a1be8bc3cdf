"""What is started again when a task fails, how often, and who is named as the cause."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.support.launchers import DEADLINE, Start, lines_until, outlive
from tfdist.tools.launch.timers import RestartDelays

pytestmark = [pytest.mark.stacks("newest", horovod=("2.15",)), pytest.mark.timeout(60)]

# Each start of a task leaves a file; `starts` counts them, `nth` is this one's number from 1.
COUNT = """
def starts(task):
    return len(list(pathlib.Path(".").glob(f"{task.replace(':', '-')}.*")))

nth = starts(name) + 1
pathlib.Path(f"{name.replace(':', '-')}.{nth}").touch()
"""
PARAMETER_SERVER = ("--strategy=parameter_server", "--ps=1", "--workers=2", "--chief")


def starts(path: Path) -> dict[str, int]:
    names = [file.name.split(".")[0] for file in path.glob("*-[0-9].*")]
    return {name: names.count(name) for name in sorted(set(names))}


def restarts(count: int) -> tuple[str, ...]:
    return (f"--max_restarts={count}", "--restart_delay=0.05")


@pytest.mark.parametrize("strategy", ["multi_worker_mirrored", "horovod"])
def test_tasks_that_train_together_start_again_together(
    tfdist_run: Start, tmp_path: Path, strategy: str
) -> None:
    who = 'name = "worker:" + os.environ.get("HOROVOD_RANK", name[-1])\n'
    script = """
        if nth == 1 and name == "worker:1":
            wait_for("worker-0.1")
            sys.exit(3)
        wait_for("worker-1.2")
    """
    launcher = tfdist_run(
        who + COUNT + "\n" + script.replace(" " * 8, ""),
        f"--strategy={strategy}",
        "--workers=2",
        *restarts(1),
    )
    _, err = launcher.communicate(timeout=DEADLINE)
    assert (launcher.returncode, err) == (
        0,
        "tfdist: worker:1 failed with exit code 3, restart 1 of 1 of all tasks now, ending "
        "worker:0\n",
    )
    assert starts(tmp_path) == {"worker-0": 2, "worker-1": 2}


def test_a_job_that_fails_again_and_again_is_given_up_with_its_cause(
    tfdist_run: Start, tmp_path: Path
) -> None:
    script = COUNT + 'print("no data"); sys.exit(4)'
    launcher = tfdist_run(script, *restarts(2))
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 4
    assert err.splitlines() == [
        "tfdist: worker:0 failed with exit code 4, restart 1 of 2 of all tasks now",
        "tfdist: worker:0 failed with exit code 4, restart 2 of 2 of all tasks in 0.05 s",
        "tfdist: worker:0 failed with exit code 4 (given up after 2 restarts)",
        "tfdist: the last lines of worker:0:",
        "[worker:0] no data",
    ]
    assert starts(tmp_path) == {"worker-0": 3}


def test_a_restart_after_a_while_is_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tfdist.tools.launch.timers.time.monotonic", lambda: now[0])
    delays = RestartDelays(2.0)
    assert [delays.next() for _ in range(3)] == [0.0, 2.0, 4.0]
    now[0] += 35.0
    assert [delays.next() for _ in range(2)] == [0.0, 2.0]


def test_a_mistake_of_usage_is_not_repeated(tfdist_run: Start, tmp_path: Path) -> None:
    launcher = tfdist_run(COUNT + "sys.exit(2)", *restarts(5))
    assert launcher.wait(timeout=DEADLINE) == 2
    assert starts(tmp_path) == {"worker-0": 1}


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        ("worker:1", {"chief-0": 1, "ps-0": 1, "worker-0": 1, "worker-1": 2}),
        ("ps:0", {"chief-0": 2, "ps-0": 2, "worker-0": 2, "worker-1": 2}),
        ("chief:0", {"chief-0": 2, "ps-0": 2, "worker-0": 2, "worker-1": 2}),
    ],
)
def test_of_a_parameter_server_job_a_worker_alone_is_replaced(
    tfdist_run: Start, tmp_path: Path, fails: str, expected: dict[str, int]
) -> None:
    script = f"""
if name == "{fails}" and nth == 1:
    for other in ("chief-0", "ps-0", "worker-0", "worker-1"):
        wait_for(other + ".1")
    os.kill(os.getpid(), signal.SIGKILL)
wait_for("{fails.replace(":", "-")}.2")
"""
    launcher = tfdist_run(COUNT + script, *PARAMETER_SERVER, *restarts(1))
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 0, err
    assert f"{fails} was killed by signal 9 (Killed), restart 1 of 1" in err
    assert starts(tmp_path) == expected


def test_an_evaluator_alone_is_replaced_also_after_the_end(
    tfdist_run: Start, tmp_path: Path
) -> None:
    script = """
if name == "evaluator:0" and nth == 1:
    wait_for("ended")
    sys.exit(1)
elif name == "worker:0":
    pathlib.Path("ended").touch()
"""
    launcher = tfdist_run(COUNT + script, "--evaluator", *restarts(1))
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 0, err
    assert starts(tmp_path) == {"evaluator-0": 2, "worker-0": 1}


def test_a_task_that_fails_after_the_end_of_the_chief_is_not_restarted(
    tfdist_run: Start, tmp_path: Path
) -> None:
    script = """
if name == "worker:1":
    wait_for("ended")
    time.sleep(0.2)
    sys.exit(5)
pathlib.Path("ended").touch()
"""
    launcher = tfdist_run(COUNT + script, "--workers=2", *restarts(3))
    assert launcher.wait(timeout=DEADLINE) == 5
    assert starts(tmp_path) == {"worker-0": 1, "worker-1": 1}


def test_who_leaves_alone_when_told_to_gives_the_others_time_to_save(
    tfdist_run: Start, tmp_path: Path
) -> None:
    script = """
def save(*_):
    pathlib.Path("saved").touch()
    sys.exit(75)

if name == "evaluator:0":
    wait_for("ready")
    sys.exit(75)
on_signal(save, signal.SIGTERM)
pathlib.Path("ready").touch()
time.sleep(60)
"""
    launcher = tfdist_run(script, "--evaluator")
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 75
    assert (tmp_path / "saved").exists()
    assert "evaluator:0 was preempted, saved a checkpoint and exited with code 75" in err


def test_those_that_leave_together_are_not_signalled_again(
    tfdist_run: Start, tmp_path: Path
) -> None:
    script = """
on_signal(lambda *_: pathlib.Path("signalled").touch(), signal.SIGTERM)
if name == "worker:0":
    wait_for("ready")
    sys.exit(75)
pathlib.Path("ready").touch()
time.sleep(0.5)
sys.exit(75)
"""
    launcher = tfdist_run(script, "--workers=2")
    launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 75
    assert not (tmp_path / "signalled").exists()


def test_a_server_that_ignores_the_signal_to_end_does_not_fail_a_complete_job(
    tfdist_run: Start,
) -> None:
    script = """
if name == "ps:0":
    wait_for("ended")
    time.sleep(0.3)
    sys.exit(75)
pathlib.Path("ended").touch()
"""
    launcher = tfdist_run(script, "--ps=1", *restarts(2))
    _, err = launcher.communicate(timeout=DEADLINE)
    assert (launcher.returncode, err) == (0, "")


def test_a_signal_ends_the_wait_for_a_restart(tfdist_run: Start, tmp_path: Path) -> None:
    launcher = tfdist_run("sys.exit(1)", "--max_restarts=2", "--restart_delay=50")
    assert launcher.stderr is not None
    assert "restart 1 of 2" in launcher.stderr.readline()
    assert "restart 2 of 2 of all tasks in 50 s" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=DEADLINE) == 128 + signal.SIGTERM


def test_the_others_are_gone_before_all_start_again(tfdist_run: Start, tmp_path: Path) -> None:
    script = """
if name == "worker:1" and nth == 1:
    wait_for("ready")
    sys.exit(1)
elif nth == 1:
    on_signal(signal.SIG_IGN, signal.SIGTERM)
    print("pid", os.getpid(), flush=True)
    pathlib.Path("ready").touch()
    time.sleep(60)
elif name == "worker:0":
    print("second", flush=True)
    wait_for("go")
"""
    launcher = tfdist_run(COUNT + script, "--workers=2", "--grace_period=0.3", *restarts(1))
    assert launcher.stdout is not None
    line = launcher.stdout.readline()
    while "pid" not in line:
        line = launcher.stdout.readline()
    first = psutil.Process(int(line.split()[-1]))
    lines_until(launcher, "[worker:0] second")
    assert outlive([first], 0.0) == []
    (tmp_path / "go").touch()
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 0
    assert "killing worker:0" in err


def test_a_replacement_that_came_too_late_is_ended(start: Start, tmp_path: Path) -> None:
    launcher = start(["-c", REPLACED_TOO_LATE])
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 0
    assert err.splitlines()[1:] == [
        "tfdist: chief:0 ended 0.05 s ago, still running: worker:0",
        "tfdist: worker:0 was killed by signal 9 (Killed), after the training was complete",
    ]


# The worker is killed, and its replacement reaches no other task and waits.
REPLACED_TOO_LATE = """
import os, sys
from tfdist.tools.launch.membership import Membership
from tfdist.tools.launch.task_plan import TaskSpec
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.supervisor import Supervisor

worker = '''
import os, signal, time
if not os.path.exists("replaced"):
    open("replaced", "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
open("waits", "w").close()
time.sleep(60)
'''
chief = "import os, time\\nwhile not os.path.exists('waits'): time.sleep(0.01)"
tasks = [
    TaskSpec("chief:0", (sys.executable, "-c", chief), {}),
    TaskSpec("worker:0", (sys.executable, "-c", worker), {}, restarts_alone=True),
]
options = Supervision(shutdown_timeout=0.05, max_restarts=1, restart_delay=0.0)
sys.exit(Supervisor(Membership(tasks), os.environ, options).run())
"""


def test_the_first_exception_is_the_cause_whichever_task_ends_first(tfdist_run: Start) -> None:
    script = """
from tfdist.errors import ERROR_FILE_VARIABLE
from tfdist.process.excepthook import end_on_uncaught

def slowly(*error):
    pathlib.Path("raised").touch()
    wait_for("never")

if name == "worker:1":
    sys.excepthook = slowly
else:
    wait_for("raised")
end_on_uncaught(os.environ[ERROR_FILE_VARIABLE])
raise ValueError(f"{name} fails\\nand says more")
"""
    launcher = tfdist_run(script, "--workers=2", "--grace_period=0.2")
    out, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 1
    assert err.splitlines()[0] == (
        "tfdist: worker:1 failed, and worker:0 with it (ValueError: worker:1 fails and says more), "
        "ending worker:1"
    )
    assert out.count("Traceback") == 1
    assert "the last lines" not in err


def test_an_uncaught_exception_does_not_wait_for_threads(tfdist_run: Start) -> None:
    script = """
import threading
from tfdist.process.excepthook import end_on_uncaught

threading.Thread(target=time.sleep, args=(1000,)).start()
end_on_uncaught(None)
raise (KeyboardInterrupt if os.environ.get("INTERRUPT") else RuntimeError)("broken")
"""
    for extra, code in (({}, 1), ({"INTERRUPT": "1"}, 130)):
        launcher = tfdist_run(script, extra=extra)
        out, _ = launcher.communicate(timeout=DEADLINE)
        assert launcher.returncode == code
        assert "broken" in out


@pytest.mark.parametrize(
    ("raised", "line", "code"),
    [
        ("UsageError('flag', received=1, accepted='2', remedy='Correct it.')", "flag: rec", 2),
        ("OutputError('/out', problem='is full', remedy='Make room.')", "/out is full. Make", 1),
    ],
)
def test_an_error_that_names_its_remedy_is_printed_as_one_line(
    tfdist_run: Start, raised: str, line: str, code: int
) -> None:
    launcher = tfdist_run(
        "from tfdist.process.excepthook import end_on_uncaught\n"
        "from tfdist.errors import OutputError, UsageError\n"
        f"end_on_uncaught(None)\nraise {raised}\n"
    )
    out, _ = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == code
    assert out.startswith(f"[worker:0] tfdist: error: {line}")
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("value", ["-1", "some", "1.5"])
def test_a_wrong_number_of_restarts_is_refused(tfdist_run: Start, value: str) -> None:
    launcher = tfdist_run("", f"--max_restarts={value}")
    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 2
    assert err.startswith("tfdist: error: ") and "--max_restarts" in err and value in err


def test_a_worker_that_has_lost_the_chief_restarts_all_tasks(
    tfdist_run: Start, tmp_path: Path
) -> None:
    """The chief is suspended, and would wait forever for a worker that is restarted alone."""
    launcher = tfdist_run(
        """
        from tfdist.errors import LostTaskError
        from tfdist.errors import ERROR_FILE_VARIABLE
        from tfdist.process.excepthook import end_on_uncaught
        end_on_uncaught(os.environ[ERROR_FILE_VARIABLE])
        if os.path.exists("again"):
            sys.exit()
        if name == "worker:0":
            open("again", "w").close()
            raise LostTaskError("chief:0", "127.0.0.1:1", 5.0)
        time.sleep(60)
        """,
        *["--strategy=parameter_server", "--ps=1", "--workers=1", "--chief"],
        *["--max_restarts=1", "--restart_delay=0"],
    )
    _, errors = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 0, errors
    assert "restart 1 of 1 of all tasks" in errors
