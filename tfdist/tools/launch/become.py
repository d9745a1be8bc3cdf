"""Replaces this process by the script of a task.

if wait_for_ranks(config, task, timeout=300.0, token=token):
    become(task.command, {**os.environ, **task.environment})
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NoReturn

from tfdist.cluster.config import ClusterConfig
from tfdist.errors import UsageError, log
from tfdist.tools.launch.rank_membership import RankMembership
from tfdist.tools.launch.spawn import die_with
from tfdist.tools.launch.task_plan import TaskSpec

_POLL_SECONDS = 0.2
_READY = b"r"


def become(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replaces this process by a command."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], list(command), dict(environ))


def wait_for_ranks(config: ClusterConfig, task: TaskSpec, timeout: float, token: str) -> bool:
    """Waits until all ranks of a job are ready to start.

    The first rank leaves a child process that serves the rendezvous until this process ends, also
    after it has become the script.

    Args:
      config: the cluster and the rank's task.
      task: the planned task, with the variables of `horovodrun`.
      timeout: how long to wait, in seconds.
      token: the job's token.

    Returns:
      Whether all ranks are ready; the reason is logged if they are not.
    """
    members = RankMembership(config, task, timeout, token)
    if not members.is_first:
        return _wait(members)
    reader, writer = os.pipe()
    parent = os.getpid()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            return pipe.read(1) == _READY
    code = 1
    try:
        die_with(parent)
        # Ctrl-C ends the script, and the script's end ends this process.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with closing(members):
            if _wait(members):
                os.write(writer, _READY)
                while True:
                    signal.pause()
    finally:
        os._exit(code)


def _wait(members: RankMembership) -> bool:
    try:
        while not members.tasks():
            time.sleep(_POLL_SECONDS)
    except (TimeoutError, UsageError) as error:
        log(f"error: {error}")
        return False
    return True
