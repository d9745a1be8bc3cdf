"""The local end of a connection: runs the tasks of one host, and exits with their code.

    python -m tfdist.tools.launch.remote.client HOST PLAN_FILE ssh [ARGS ...]

It passes on signals, copies the output, and says why a connection ends early. `ssh` checks the
host's key; it asks for nothing.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tfdist.errors import EXIT_FAILED, log
from tfdist.tools.launch.remote.panel_rows import ROWS_MARK, keep_rows, rows_file
from tfdist.tools.launch.remote.server import EXIT_MARK, SIGN_SECONDS
from tfdist.tools.launch.signals import INTERRUPTIONS
from tfdist.tools.launch.spawn import die_with

# Without an answer for 20 seconds the host is lost.
_OPTIONS = (
    *("-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4"),
    *("-o", "ConnectTimeout=20", "-T"),
)


def run(host: str, plan: Path, ssh: Sequence[str]) -> int:
    """Runs the tasks of a host; returns their exit code, or 1 if the connection was lost.

    Args:
      host: the host.
      plan: the file with its plan, as JSON without a line end.
      ssh: the command of ssh, and its arguments.
    """
    remote = shlex.join([sys.executable, "-m", "tfdist.tools.launch.remote.server"])
    process = subprocess.Popen(
        [*ssh, *_OPTIONS, host, remote],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Signals for this process's group are for the tasks, and not for ssh.
        start_new_session=True,
        preexec_fn=partial(die_with, os.getpid()),
    )
    assert process.stdin is not None and process.stdout is not None

    def tell(number: int) -> None:
        with suppress(OSError):
            os.write(process.stdin.fileno(), b"%d\n" % number)  # type: ignore[union-attr]

    def show_life() -> None:
        while True:
            time.sleep(SIGN_SECONDS)
            tell(0)

    with suppress(OSError):
        process.stdin.write(plan.read_bytes() + b"\n")
        process.stdin.flush()
    for number in INTERRUPTIONS:
        signal.signal(number, lambda number, _: tell(number))
    threading.Thread(target=show_life, daemon=True).start()
    code = None
    for line in process.stdout:
        if line.startswith(ROWS_MARK.encode()):
            keep_rows(line, rows_file(plan))
        elif line.startswith(EXIT_MARK.encode()):
            code = int(line[len(EXIT_MARK) :])
        else:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    ended = process.wait()
    if code is None:
        log(f"the connection to {host} has ended with code {ended}")
        return EXIT_FAILED
    return code


if __name__ == "__main__":
    _, name, file, *command = sys.argv
    sys.exit(run(name, Path(file), command))
