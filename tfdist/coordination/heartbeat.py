"""Ends this process when another one that it needs is stopped or has lost its machine.

    with watched({"chief:0": "10.0.0.1:2222"}, timeout=30.0):     # in a server
        ...
    watch_from_outside({"ps:0": "10.0.0.3:2222"}, timeout=30.0)   # in whoever calls servers

TensorFlow's own calls wait for such a one for ever. A task that is merely gone is no concern here:
TensorFlow notices a connection that is refused.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tfdist.cluster import host_and_port
from tfdist.errors import LostTaskError, log
from tfdist.runtime import excepthook

_PROBE_SECONDS = 2.0
_PROBES = 6  # within the time of the heartbeat
_ORPHAN_SECONDS = 1.0


@contextmanager
def watched(tasks: Mapping[str, str], timeout: float) -> Iterator[None]:
    """While the block runs, the process ends when a task gives no sign of life for so long.

    Args:
      tasks: addresses, by the names of the tasks; TensorFlow's servers listen there.
      timeout: seconds.
    """
    stopped = threading.Event()

    def end(error: BaseException) -> None:
        if not stopped.is_set():
            excepthook.end(error)

    arguments = (tasks, timeout, end, is_silent, stopped.wait)
    threading.Thread(target=_watch, args=arguments, name="heartbeat", daemon=True).start()
    try:
        yield
    finally:
        stopped.set()


def watch_from_outside(tasks: Mapping[str, str], timeout: float) -> None:
    """As `watched` to this process's end, from a process of its own, which kills this one.

    Some of TensorFlow's calls to another task hold Python's global lock while they wait.
    """
    package = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *sys.path])}
    named = [f"{task}={address}" for task, address in tasks.items()]
    command = [
        sys.executable,
        "-m",
        "tfdist.coordination.heartbeat",
        str(os.getpid()),
        str(timeout),
        *named,
    ]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environ)


def is_silent(address: str, seconds: float = _PROBE_SECONDS) -> bool:
    """Whether whoever should listen at `address` says nothing within so many seconds.

    TensorFlow's server speaks first, from a thread of its own; a task that still waits for others
    in the startup barrier closes a connection that sends nothing it knows. Where the machine
    refuses the connection the answer is False.
    """
    try:
        with socket.create_connection(host_and_port(address), timeout=seconds) as connection:
            connection.sendall(b"\n")
            connection.recv(1)
    except (ConnectionError, socket.gaierror):
        return False
    except OSError:
        return True
    return False


def _watch(
    tasks: Mapping[str, str],
    timeout: float,
    end: Callable[[BaseException], None],
    is_silent_at: Callable[[str], bool],
    sleep: Callable[[float], bool],
) -> None:
    """Ends by itself when `sleep` says that it is to."""
    # Counted from the first silence that was heard, because this machine may have stood still, too.
    silent_since: dict[str, float] = {}
    while True:
        for task, address in tasks.items():
            asked = time.monotonic()
            if not is_silent_at(address):
                silent_since.pop(task, None)
            elif asked - silent_since.setdefault(task, asked) >= timeout:
                end(LostTaskError(task, address, timeout))
                return
        if sleep(timeout / _PROBES):
            return


def _main(parent: int, timeout: float, tasks: Mapping[str, str]) -> None:
    """What `watch_from_outside` starts; ends with its parent."""
    # They are meant for the parent, which may still have to save.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)

    def is_orphan() -> bool:
        return os.getppid() != parent

    def end(error: BaseException) -> None:
        if is_orphan():
            return
        error_file = os.environ.get(excepthook.ERROR_FILE_VARIABLE)
        excepthook.write_uncaught(error_file, f"{type(error).__name__}: {error}", time.time())
        log(f"error: {error}")
        os.kill(parent, signal.SIGKILL)

    def sleep(seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not is_orphan():
            time.sleep(min(left, _ORPHAN_SECONDS))
        return is_orphan()

    _watch(tasks, timeout, end, is_silent, sleep)


if __name__ == "__main__":
    _main(int(sys.argv[1]), float(sys.argv[2]), dict(task.split("=") for task in sys.argv[3:]))
