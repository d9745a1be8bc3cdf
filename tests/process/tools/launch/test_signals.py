"""Jobs of real processes on this machine: what a signal to the launcher does to their tasks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.launchers import DEADLINE, Start, lines_until, outlive

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(60)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_reaches_the_tasks(
    tfdist_run: Start, number: signal.Signals
) -> None:
    launcher = tfdist_run(
        """
        def leave(number, frame):
            print("got", signal.Signals(number).name)
            sys.exit(0)

        on_signal(leave, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        print("ready")
        while True:
            signal.pause()
        """,
        "--workers=2",
        "--grace_period=60",
    )
    lines_until(launcher, "[worker:0] ready", "[worker:1] ready")

    launcher.send_signal(number)

    out, err = launcher.communicate(timeout=DEADLINE)
    assert sorted(out.splitlines()) == [f"[worker:{i}] got {number.name}" for i in (0, 1)]
    assert (launcher.returncode, err) == (128 + number, "")


SAVES = """
def save(number, frame):
    pathlib.Path("saved-" + name).touch()
    sys.exit(75)

on_signal(save, signal.SIGTERM)
while True:
    print("step", flush=True)
    time.sleep(0.05)
"""


def test_tasks_save_when_their_output_cannot_be_printed(tfdist_run: Start, tmp_path: Path) -> None:
    launcher = tfdist_run(SAVES, "--workers=2")
    assert launcher.stdout is not None
    assert launcher.stdout.readline()
    launcher.stdout.close()
    launcher.stdout = None
    _, err = launcher.communicate(timeout=DEADLINE)
    assert err == "tfdist: cannot print the output of the tasks (Broken pipe): ending them\n"
    assert launcher.returncode == 75
    assert {path.name for path in tmp_path.glob("saved-*")} == {"saved-worker:0", "saved-worker:1"}


def test_tasks_save_when_the_disk_of_their_output_is_full(
    tfdist_run: Start, tmp_path: Path
) -> None:
    with open("/dev/full", "w") as full:
        launcher = tfdist_run(SAVES, stdout=full)
    _, err = launcher.communicate(timeout=DEADLINE)
    assert "(No space left on device): ending them\n" in err
    assert "Traceback" not in err
    assert (launcher.returncode, (tmp_path / "saved-worker:0").exists()) == (75, True)


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_standard_stream_is_no_error(
    tfdist_run: Start, tmp_path: Path, closed: int
) -> None:
    launcher = tfdist_run(
        'pathlib.Path("done").touch(); print("done")', preexec_fn=lambda: os.close(closed)
    )
    out, err = launcher.communicate(timeout=DEADLINE)
    assert (launcher.returncode, (tmp_path / "done").exists()) == (0, True)
    assert (out, err) == ("" if closed == 1 else "[worker:0] done\n", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tasks_that_ignore_a_signal_to_the_launcher_are_killed(
    tfdist_run: Start, number: signal.Signals
) -> None:
    launcher = tfdist_run(
        """
        on_signal(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM)
        print("ready")
        while True:
            signal.pause()
        """,
        "--grace_period=0.2",
    )
    lines_until(launcher, "[worker:0] ready")

    launcher.send_signal(number)

    launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 128 + number


def test_a_second_ctrl_c_kills_at_once(tfdist_run: Start) -> None:
    launcher = tfdist_run(
        """
        on_signal(lambda *_: print("first"), signal.SIGINT)
        print("ready")
        while True:
            signal.pause()
        """,
        "--grace_period=600",
    )
    lines_until(launcher, "[worker:0] ready")
    launcher.send_signal(signal.SIGINT)
    lines_until(launcher, "[worker:0] first")

    launcher.send_signal(signal.SIGINT)

    _, err = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == 130
    assert err == "tfdist: killing worker:0: a second signal\n"


def test_a_second_sigterm_leaves_the_grace_period(tfdist_run: Start, tmp_path: Path) -> None:
    # `timeout` sends two: one to the launcher, one to its group.
    launcher = tfdist_run(
        """
        def leave(*_):
            print("saving")
            wait_for("go")
            print("saved")
            sys.exit(0)

        on_signal(leave, signal.SIGTERM)
        print("ready")
        while True:
            signal.pause()
        """,
        "--grace_period=600",
    )
    lines_until(launcher, "[worker:0] ready")
    launcher.send_signal(signal.SIGTERM)
    lines_until(launcher, "[worker:0] saving")

    launcher.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()

    out, _ = launcher.communicate(timeout=DEADLINE)
    assert (launcher.returncode, out) == (143, "[worker:0] saved\n")


def test_nohup_keeps_its_meaning(tfdist_run: Start, tmp_path: Path) -> None:
    launcher = tfdist_run(
        """
        print("ready")
        wait_for("go")
        print("trained")
        """,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    lines_until(launcher, "[worker:0] ready")

    launcher.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()

    out, _ = launcher.communicate(timeout=DEADLINE)
    assert (launcher.returncode, out) == (0, "[worker:0] trained\n")


def test_a_launcher_that_is_killed_leaves_no_task(tfdist_run: Start) -> None:
    launcher = tfdist_run(
        """
        on_signal(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        print("ready")
        while True:
            signal.pause()
        """,
        "--workers=2",
    )
    lines_until(launcher, "[worker:0] ready", "[worker:1] ready")
    tasks = psutil.Process(launcher.pid).children()
    assert len(tasks) == 2

    launcher.kill()

    assert outlive(tasks) == []


def test_the_next_launcher_removes_the_directory_of_one_that_was_killed(
    tfdist_run: Start, tmp_path: Path
) -> None:
    own = {"TMPDIR": str(tmp_path)}
    script = """
        print("ready", flush=True)
        while True:
            signal.pause()
    """
    launcher = tfdist_run(script, extra=own)
    lines_until(launcher, "[worker:0] ready")
    (directory,) = tmp_path.glob("tfdist-run-*")
    launcher.kill()
    launcher.communicate(timeout=DEADLINE)
    assert directory.exists()
    kept = tmp_path / f"tfdist-run-{os.getpid()}-kept"
    kept.mkdir()

    out, _ = tfdist_run('print("done")', extra=own).communicate(timeout=DEADLINE)
    assert out == "[worker:0] done\n"
    assert [*tmp_path.glob("tfdist-run-*")] == [kept]
