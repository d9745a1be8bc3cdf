"""Warns once about a job that does not do what its user wants, although no task fails.

    notices = Notices(processes)
    while notices.look():           # every second
        ...
    notices.on_success(process)     # a task has ended with code 0

A script that does not distribute trains once in each task, and all of them write the same files. In
a job of parameter servers whose script needs a chief, all tasks serve, forever.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tfdist.errors import log
from tfdist.tools.launch.process import Process
from tfdist.tools.launch.servers import cpu_seconds

# A task imports TensorFlow and reads data before it joins the others.
_ALONE_SECONDS = 60.0
_IDLE_SECONDS = 30.0
# A task that ends earlier has not trained.
_SHORTEST_SECONDS = 5.0
# Seconds of CPU time of all tasks, over `_IDLE_SECONDS`.
_IDLE = 0.3

# What Keras prints first.
_TRAINS = "Epoch 1/"

# proc(5), net/tcp.
_LISTENS, _CONNECTS = "0A", "02"


class Notices:
    """Looks at the ports and the CPU time of the tasks of a job.

    Args:
      processes: the processes, all just started.
    """

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self._started = time.monotonic()
        tasks = [process.task for process in processes]
        self._listen = {task.port for task in tasks if task.port}
        self._connect = {task.rendezvous_port for task in tasks if task.rendezvous_port}
        self._is_decided = not (self._listen or self._connect)
        kinds = [task.kind for task in tasks]
        has_servers = any(kind.serves and kind.in_tensorflow for kind in kinds)
        self._may_serve = has_servers and not any(kind.leads for kind in kinds)
        self._busy_at, self._used = self._started, 0.0

    def look(self) -> bool:
        """Looks at the job; returns whether to look again."""
        now = time.monotonic()
        if not self._is_decided and self._have_met():
            self._is_decided = True
        if not self._is_decided and now - self._started >= _ALONE_SECONDS:
            self._say_alone(f"no task has joined the others after {_ALONE_SECONDS:.0f} s")
        # Those who train together meet before.
        lines = [line for process in self._processes for line in process.last_lines]
        if not self._is_decided and any(line.startswith(_TRAINS) for line in lines):
            self._say_alone("a task trains, and no task has joined the others")
        if self._may_serve and now - self._busy_at >= _IDLE_SECONDS:
            used = cpu_seconds(self._processes)
            if 0 <= used - self._used < _IDLE:
                log(
                    f"warning: all tasks have been idle for {_IDLE_SECONDS:.0f} s. If the script "
                    "needs a task of type chief, as tf.distribute's ParameterServerStrategy does, "
                    "add --chief"
                )
                self._may_serve = False
            self._busy_at, self._used = now, used
        return not self._is_decided or self._may_serve

    def on_success(self, process: Process) -> None:
        """Call this when a task has ended with code 0."""
        seconds = time.monotonic() - self._started
        if not self._is_decided and seconds >= _SHORTEST_SECONDS and not self._have_met():
            self._say_alone(f"{process.name} has ended, and no task had joined the others")
        self._is_decided = True

    def _say_alone(self, what: str) -> None:
        self._is_decided = True
        log(
            f"warning: {what}. A script that uses neither tfdist nor a strategy of tf.distribute "
            "for several tasks trains the same model in each task, also one with a "
            "MirroredStrategy: start it with --workers=1; one that calls hvd.init itself needs "
            "--strategy=horovod, and on several machines --cluster_as=horovodrun, too"
        )

    def _have_met(self) -> bool:
        """Whether a task listens on its port, or has a connection to the rendezvous."""
        for path in Path("/proc/net").glob("tcp*"):  # tcp, and tcp6 where the kernel has it
            for line in path.read_text().splitlines()[1:]:
                _, local, remote, state, *_ = line.split()
                own, other = (int(end.rpartition(":")[2], 16) for end in (local, remote))
                if state == _LISTENS and own in self._listen:
                    return True
                # The launcher of the rendezvous is at one end, here or on another machine.
                if state not in (_LISTENS, _CONNECTS) and self._connect & {own, other}:
                    return True
        return False
