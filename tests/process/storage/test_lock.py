"""The lock of an output directory, with real processes that hold it, end or are killed."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

from tests.conftest import TinyTraining, tf_config
from tests.support.processes import ROOT
from tfdist.errors import OutputError, UsageError
from tfdist.storage import lock
from tfdist.storage.output_directory import OutputDirectory
from tfdist.training.state import TrainingState

pytestmark = [pytest.mark.stacks("2.15", "newest"), pytest.mark.timeout(60)]

HOLDER = """
import os, shutil, sys, time
from pathlib import Path
from tfdist.storage import lock
path = Path(sys.argv[1])
lock.hold(path)
{then}
print("ready", flush=True)
time.sleep({seconds})
"""


@contextmanager
def held_by_another(
    path: Path, *, then: str = "", seconds: float = 60
) -> Iterator[subprocess.Popen[str]]:
    """A process that has taken the lock at `path`, runs `then`, and ends after `seconds`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(then=then, seconds=seconds), str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run1" / "lock.json"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another process has is refused without waiting for the process to end."""
    monkeypatch.setattr(lock, "_WAIT_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_another_process_is_refused_until_the_holder_is_killed(path: Path) -> None:
    with held_by_another(path) as holder:
        held = path.read_text()
        started = json.loads(held)["started"]
        with pytest.raises(OutputError) as refused:
            lock.hold(path)
        assert str(refused.value) == (
            f"{path.parent} is in use by another job (process {holder.pid} on "
            f"{socket.gethostname()}, started {started}). Wait until that job has ended, or end "
            "it, or choose another directory."
        )
        assert path.read_text() == held

        kill(holder)
        lock.hold(path)

    assert json.loads(path.read_text())["pid"] == os.getpid()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "then",
    ["path.read_text()", "shutil.copytree(path.parent, path.parent / 'copy')", "lock.hold(path)"],
    ids=["reads", "copies", "takes_it_again"],
)
def test_the_holder_may_open_and_close_the_file(then: str, path: Path) -> None:
    with held_by_another(path, then=then), pytest.raises(OutputError, match="in use"):
        lock.hold(path)


def test_a_child_of_the_holder_does_not_keep_the_lock(path: Path) -> None:
    fork = "if os.fork() == 0: time.sleep(60), os._exit(0)"
    with held_by_another(path, then=fork) as holder:
        kill(holder)
        lock.hold(path)
        os.killpg(holder.pid, 0)  # Raises an exception if the child has ended.


def test_a_process_waits_for_the_holder_to_end(path: Path) -> None:
    with held_by_another(path, seconds=1) as holder:
        started = time.monotonic()
        lock.hold(path)
        assert time.monotonic() - started > 0.5
        assert json.loads(path.read_text())["pid"] == os.getpid()
        assert holder.wait() == 0


@pytest.mark.usefixtures("impatient")
def test_a_new_file_in_place_of_a_removed_one_is_locked(path: Path) -> None:
    lock.hold(path)
    shutil.rmtree(path.parent)

    with held_by_another(path), pytest.raises(OutputError, match="in use"):
        lock.hold(path)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"host": '])
def test_a_holder_without_a_name_is_refused_too(text: str, path: Path) -> None:
    refused = pytest.raises(OutputError, match=r"\(its process is not named in lock\.json\)")
    with held_by_another(path, then=f"path.write_text({text!r})"), refused:
        lock.hold(path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_is_logged_once(
    number: int, path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    lock.hold(path)
    lock.hold(path)

    assert capsys.readouterr().err == (
        f"tfdist: {path} cannot be locked ({os.strerror(number)}), so make sure that no other job "
        "writes in this directory\n"
    )


def test_a_directory_that_cannot_be_written_is_rejected(path: Path) -> None:
    path.parent.write_text("a file\n")

    with pytest.raises(UsageError, match=r"output_dir: .*\(Not a directory\)"):
        lock.hold(path)


# Who takes the lock.


def last_changes(directory: Path) -> dict[str, tuple[int, int]]:
    """The size and the time of the last change of a directory and its files, but not of reads."""
    files = {file.name: file.stat() for file in [directory, *directory.iterdir()]}
    return {name: (status.st_size, status.st_mtime_ns) for name, status in files.items()}


@pytest.mark.usefixtures("impatient")
def test_a_second_training_changes_nothing(tiny: TinyTraining, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    left = tmp_path / ".done.json-0123456789abcdef"
    left.write_text("a file that the first job is writing\n")
    with held_by_another(output.lock):
        before = last_changes(tmp_path)
        with pytest.raises(OutputError, match="is in use by another job"):
            tiny.job().callbacks(str(tmp_path))
        assert last_changes(tmp_path) == before


@pytest.mark.usefixtures("impatient")
def test_a_task_that_writes_nothing_does_not_need_the_lock(
    tiny: TinyTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingState, "is_chief", False)
    with held_by_another(OutputDirectory(tmp_path).lock):
        tiny.job().callbacks(str(tmp_path))


@pytest.mark.usefixtures("impatient")
def test_a_second_evaluator_is_refused(tiny: TinyTraining, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    job = tiny.job({"TF_CONFIG": tf_config("evaluator", 0, worker=["a:1", "b:1"])})
    with (
        held_by_another(output.lock),
        held_by_another(output.eval_lock) as evaluator,
        pytest.raises(OutputError, match=f"process {evaluator.pid} "),
    ):
        job.evaluate(tiny.model(), tiny.eval_input, str(tmp_path))


def test_another_process_sees_whether_the_lock_is_held(path: Path) -> None:
    assert lock.is_held(path) is False
    with held_by_another(path) as process:
        assert lock.is_held(path) is True
        # A look does not take the lock, and does not release it.
        assert lock.is_held(path) is True
        kill(process)
        assert lock.is_held(path) is False
