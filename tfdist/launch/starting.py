"""How the processes of a job are started: as new ones, or as copies of one that is prepared.

    with closing(Starter(("tensorflow",), os.environ)) as starter:
        ...                                   # until starter.socket can be read
        starter.read_socket()
        started = starter.start(["python", "train.py"], environ, output)

Where the process to copy is lost, new ones are started in its place.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from tfdist.launch.forkserver import ForkServer, ForkServerLostError, die_with
from tfdist.runtime import environment
from tfdist.strategies import table


def modules_of(strategy: str) -> tuple[str, ...]:
    """The modules that every task of a strategy, or of `auto`, imports."""
    row = table.TABLE.get(strategy)
    own = (row.strategy.partition(":")[0],) if row else ()
    return ("tensorflow", "tfdist.start", "tfdist.training.callbacks", *own)


class Started(Protocol):
    """A child of this process, the leader of a process group of its own."""

    pid: int

    def wait(self) -> int:
        """Waits for its end; the exit code, or minus the number of the signal that ended it."""


class Start(Protocol):
    """Starts a command with an environment, its output to a file descriptor."""

    def __call__(
        self, command: Sequence[str], environ: Mapping[str, str], output: int
    ) -> Started: ...


def spawn(command: Sequence[str], environ: Mapping[str, str], output: int) -> Started:
    """A new process, which the kernel kills when this one is gone."""
    return subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=partial(die_with, os.getpid()),
    )


class Starter:
    """Starts processes.

    Args:
      preload: the modules that the process to copy imports; none: there is no such process.
      environ: the launcher's environment.
    """

    def __init__(self, preload: Sequence[str], environ: Mapping[str, str]) -> None:
        self._server: ForkServer | None = None
        self.is_ready = not preload
        if preload:
            self._server = ForkServer(preload, {**environment.environment(), **environ})

    @property
    def socket(self) -> socket.socket | None:
        """What can be read when there is news; None where there is no process to copy."""
        return self._server.socket if self._server else None

    def read_socket(self) -> None:
        """Reads the news: the process to copy is ready, or has ended."""
        assert self._server is not None
        try:
            self._server.read_ready()
        except ForkServerLostError:
            self.close()
        self.is_ready = True

    def start(self, command: Sequence[str], environ: Mapping[str, str], output: int) -> Started:
        """As `Start`."""
        if self._server is not None:
            try:
                return self._server.start(command, environ, output)
            except ForkServerLostError:
                self.close()
        return spawn(command, environ, output)

    def close(self) -> None:
        """Ends the process to copy; what is started from now on is new."""
        self.is_ready = True
        if self._server is not None:
            self._server.close()
            self._server = None
