"""Ends this process when another one that it needs is stopped, hangs or has lost its machine.

    watch({"chief:0": "10.0.0.1:2222"}, timeout=30.0)            # in a server
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
from collections.abc import Callable, Mapping
from pathlib import Path

from tfdist import uncaught
from tfdist.cluster import host_and_port
from tfdist.errors import LostTaskError

_PROBE_SECONDS = 2.0
_PROBES = 6  # within the time of the heartbeat
_ORPHAN_SECONDS = 1.0


def watch(tasks: Mapping[str, str], timeout: float) -> None:
    """From now on the process ends when one of the tasks gives no sign of life for so long.

    Args:
      tasks: addresses, by the names of the tasks; TensorFlow's servers listen there.
      timeout: seconds.
    """
    threading.Thread(
        target=_watch, args=(tasks, timeout, uncaught.end), name="heartbeat", daemon=True
    ).start()


def watch_from_outside(tasks: Mapping[str, str], timeout: float) -> None:
    """As `watch`, from a process of its own, which kills this one.

    Some of TensorFlow's calls to another task hold Python's global lock while they wait.
    """
    package = str(Path(__file__).parents[1])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *sys.path])}
    named = [f"{task}={address}" for task, address in tasks.items()]
    command = [sys.executable, "-m", "tfdist.heartbeat", str(os.getpid()), str(timeout), *named]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environ)


def is_silent(address: str, seconds: float = _PROBE_SECONDS) -> bool:
    """Whether whoever should listen at `address` says nothing within so many seconds.

    TensorFlow's server speaks first, from a thread of its own. Where nobody listens the answer is
    False, if it is the machine that says so.
    """
    try:
        with socket.create_connection(host_and_port(address), timeout=seconds) as connection:
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
    is_silent: Callable[[str], bool] = is_silent,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    last_sign = dict.fromkeys(tasks, time.monotonic())
    while True:
        for task, address in tasks.items():
            asked = time.monotonic()
            if not is_silent(address):
                last_sign[task] = time.monotonic()
            elif asked - last_sign[task] > timeout:
                end(LostTaskError(task, address, timeout))
                return
        sleep(timeout / _PROBES)


def _main(parent: int, timeout: float, tasks: Mapping[str, str]) -> None:
    """What `watch_from_outside` starts; ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # It is meant for the parent.

    def end(error: BaseException) -> None:
        error_file = os.environ.get(uncaught.ERROR_FILE_VARIABLE)
        uncaught.write_uncaught(error_file, f"{type(error).__name__}: {error}", time.time())
        print(f"tfdist: error: {error}", file=sys.stderr, flush=True)
        os.kill(parent, signal.SIGKILL)

    def sleep(seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _ORPHAN_SECONDS))
            if os.getppid() != parent:
                sys.exit()

    _watch(tasks, timeout, end, sleep=sleep)


if __name__ == "__main__":
    _main(int(sys.argv[1]), float(sys.argv[2]), dict(task.split("=") for task in sys.argv[3:]))
