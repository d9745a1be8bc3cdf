"""Ends this process when a peer stops answering.

    with watched({"chief:0": "10.0.0.1:2222"}, timeout=30.0):       # in a server
        ...
    watch_in_subprocess({"ps:0": "10.0.0.3:2222"}, timeout=30.0)    # in a task that calls servers

TensorFlow's remote calls have no timeout: they wait forever for a process that is suspended, or for
a machine that was lost. A peer that has exited is not handled here, because TensorFlow itself
reports a refused connection.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tfdist.coordination.liveness.call_watch import ALIVE, BLOCKED_TIMEOUTS, CallWatch, report_calls
from tfdist.coordination.probe import Listener, identify
from tfdist.errors import ERROR_FILE_VARIABLE, LostTaskError, log
from tfdist.process import excepthook
from tfdist.process.resources import is_suspended

_NO_ANSWER = (Listener.UNREACHABLE, Listener.SILENT)
_PROBES = 6  # per timeout
_CHECK_SECONDS = 1.0

# A call needs a thread of the called task, which may be busy, so it has more time.
_CALL_TIMEOUTS = 2

# The parent's answer that it ends; for the answer, and for its end.
_ENDING = "ending"
_ANSWER_SECONDS, _ENDING_SECONDS = 2.0, 30.0
_POLL_SECONDS = 0.1

# The processes of `watch_in_subprocess`.
_watchers: list[subprocess.Popen[str]] = []


@contextmanager
def watched(tasks: Mapping[str, str], timeout: float) -> Iterator[None]:
    """While the block runs, ends this process when a task has not answered for `timeout` seconds.

    Args:
      tasks: the addresses of TensorFlow servers, by task name.
      timeout: seconds.
    """
    stopped = threading.Event()

    def end(error: BaseException) -> None:
        if not stopped.is_set():
            excepthook.end(error)

    serving: set[str] = set()
    arguments = (tasks, timeout, end, stopped.wait, serving)
    threading.Thread(target=_watch, args=arguments, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()


def watch_in_subprocess(
    tasks: Mapping[str, str],
    timeout: float,
    calls: Mapping[str, Callable[[], bool]] | None = None,
) -> None:
    """Like `watched`, until this process exits, from a subprocess that kills this process.

    A thread is not enough for a task that calls servers: some of TensorFlow's remote calls hold
    Python's global interpreter lock while they wait.

    Args:
      tasks: the addresses of TensorFlow servers, by task name.
      timeout: seconds.
      calls: by task, a small remote call of this process; see `call_watch`.
    """
    package = str(Path(__file__).parents[3])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *sys.path])}
    command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(timeout)]
    command += [f"{task}={address}" for task, address in tasks.items()]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    reports = process.stdin.fileno()
    threading.Thread(
        target=_end_on_loss, args=[process.stdout, reports], name="lost-tasks", daemon=True
    ).start()
    _watchers.append(process)  # Otherwise Python closes the pipe.
    if calls:
        # A short write to a pipe is not mixed with that of another thread.
        report_calls(calls, timeout / _PROBES, lambda name: _write(reports, name))


def _end_on_loss(found: IO[str], reports: int) -> None:
    """Ends this process as soon as the subprocess has found that a task was lost."""
    if line := found.readline():
        task, address, seconds, what = json.loads(line)
        _write(reports, _ENDING)
        excepthook.end(LostTaskError(task, address, seconds, what=what))


def _write(reports: int, name: str) -> None:
    os.write(reports, f"{name}\n".encode())


def _watch(
    tasks: Mapping[str, str],
    timeout: float,
    end: Callable[[BaseException], None],
    sleep: Callable[[float], bool],
    serving: set[str],
    away: Container[str] = (),
) -> None:
    """Calls `end` when a task has not answered for `timeout`; returns when `sleep` returns True.

    Keeps `serving` equal to the tasks whose server has answered last. Those in `away` need not
    answer.
    """
    # Counted from the first failed probe: this process, too, may have been suspended before it.
    silent_since: dict[str, float] = {}
    while True:
        for task, address in tasks.items():
            begin = time.monotonic()
            listener = identify(address)
            if listener is Listener.SERVER:
                serving.add(task)
            else:
                serving.discard(task)
            if listener not in _NO_ANSWER or task in away:
                silent_since.pop(task, None)
            elif begin - silent_since.setdefault(task, begin) >= timeout:
                end(LostTaskError(task, address, timeout))
                return
        if sleep(timeout / _PROBES):
            return


def _main(parent: int, timeout: float, tasks: Mapping[str, str]) -> None:
    """The program of `watch_in_subprocess`; exits when its parent has exited."""
    # A signal to the process group is for the parent, which may have a checkpoint to save.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)

    def is_orphan() -> bool:
        return os.getppid() != parent

    def end(error: BaseException) -> None:
        if isinstance(error, LostTaskError) and _parent_ends(error, is_orphan):
            return
        if is_orphan():
            return
        error_file = os.environ.get(ERROR_FILE_VARIABLE)
        excepthook.write_uncaught(error_file, error, time.time())
        log(f"error: {error}")
        os.kill(parent, signal.SIGKILL)

    call_timeout = _CALL_TIMEOUTS * timeout
    watch = CallWatch(tasks, call_timeout)
    serving: set[str] = set()
    os.set_blocking(sys.stdin.fileno(), False)

    def sleep(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not is_orphan():
            time.sleep(min(left, _CHECK_SECONDS))
            for name in _received():
                watch.receive(name)
            if not is_suspended(parent):
                # Counted, not measured: this process, too, may have been suspended.
                watch.advance(min(left, _CHECK_SECONDS), serving)
            if silent := watch.silent():
                end(_unanswered(silent, tasks, call_timeout))
                return True
        return is_orphan()

    _watch(tasks, timeout, end, sleep, serving, watch.away)


def _parent_ends(error: LostTaskError, has_ended: Callable[[], bool]) -> bool:
    """Tells the parent that a task was lost, and waits; returns whether the parent has ended.

    The parent reports what the other tasks do, if no call holds its interpreter.
    """
    with suppress(OSError):
        found = [error.task, error.address, error.seconds, error.what]
        print(json.dumps(found), flush=True)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline and not has_ended():
        if _ENDING in _received():
            deadline = time.monotonic() + _ENDING_SECONDS
        time.sleep(_POLL_SECONDS)
    return has_ended()


def _unanswered(silent: str, tasks: Mapping[str, str], timeout: float) -> BaseException:
    if silent == ALIVE:
        seconds = BLOCKED_TIMEOUTS * timeout
        return RuntimeError(
            f"a call has held the Python interpreter of this task for {seconds:g} s"
        )
    address = tasks[silent]
    what = f"a call of {address} has not returned"
    return LostTaskError(silent, address, timeout, what=what)


def _received() -> list[str]:
    """The words that the parent has written to stdin since the last call."""
    try:
        return os.read(sys.stdin.fileno(), 1 << 16).decode().split()
    except BlockingIOError:
        return []


if __name__ == "__main__":
    _main(int(sys.argv[1]), float(sys.argv[2]), dict(task.split("=") for task in sys.argv[3:]))
