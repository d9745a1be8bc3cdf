"""`tfdist`, in a copy of a process that has TensorFlow imported; so are the tasks that it starts.

    launcher.py run --workers=2 train.py

As `python -m tfdist`, but for the seconds of a core that the import takes in each job, which is
more than most jobs of the tests take for anything else. `processes.copy` starts it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from tfdist.commands import cli
from tfdist.launch import forkserver, supervisor
from tfdist.launch.forkserver import ForkServer
from tfdist.launch.starting import Starter


class _Copy:
    """The process to copy, with what of `subprocess.Popen` a `ForkServer` uses."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> None:
        os.waitpid(self._pid, 0)


class CopiedForkServer(ForkServer):
    """A copy of this process, which it should be while this has not begun anything."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.socket.close()
            os.setsid()
            forkserver.die_with(launcher)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nowhere, stream)
            sys.argv[1:] = [str(theirs.detach()), str(launcher), ""]
            forkserver._main()
        theirs.close()
        self._popen = _Copy(pid)  # type: ignore[assignment]


class CopyingStarter(Starter):
    """As `Starter`, which would make a process to copy, or none for a task that is alone."""

    def __init__(self, preload: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__((), environ)
        self._server = _server
        _server.read_ready()


if __name__ == "__main__":
    _server = CopiedForkServer()
    supervisor.Starter = CopyingStarter  # type: ignore[misc]
    sys.exit(cli.main())
