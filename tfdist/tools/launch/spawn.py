"""Starts a task as a new process; `Started` is the interface of a started task.

started = spawn(["python", "train.py"], os.environ, sys.stdout.fileno())
print(started.wait())
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

_PR_SET_PDEATHSIG = 1
# Looked up here and not in a forked child, where little is safe.
_prctl = ctypes.CDLL(None).prctl


class Started(Protocol):
    """A process that was started, the leader of a process group of its own.

    Attributes:
      pid: its number.
    """

    pid: int

    @property
    def sentinel(self) -> int | None:
        """A file descriptor that becomes readable when it has ended; None if only SIGCHLD
        reports it."""

    def has_ended(self) -> bool: ...

    def wait(self) -> int:
        """Waits for its end; returns the exit code, or -n after signal n."""


#: Starts a command with an environment, its output to a file descriptor.
Start = Callable[[Sequence[str], Mapping[str, str], int], Started]


class _Spawned(subprocess.Popen[bytes]):
    sentinel = None

    def has_ended(self) -> bool:
        # It stays a zombie until `wait`, so that the number of its group stays taken.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def spawn(command: Sequence[str], environ: Mapping[str, str], output: int) -> Started:
    """Starts a new process, which the kernel kills when this process is gone."""
    return _Spawned(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=partial(die_with, os.getpid()),
    )


def die_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
