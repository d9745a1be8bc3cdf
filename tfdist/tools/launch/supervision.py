"""`Supervision`: when a launcher restarts, ends and kills tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfdist.tools.launch.output import Printer


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """How a job is supervised.

    Attributes:
      grace_period: seconds for the tasks to save and exit after a signal to the launcher; then
        they are killed. After a failure it is at most 5 seconds.
      max_restarts: how many restarts of failed tasks the whole job may have.
      restart_delay: seconds before the second restart; the delay doubles with each restart. The
        first one is not delayed, and neither is one that comes long after the last one.
      shutdown_timeout: seconds after the exit of the first task. Then the tasks that still run are
        logged, and those that were restarted alone are killed. The evaluator has no limit.
      server_timeout: seconds that a server may run, after the chief has exited and no task trains
        any more; then it is killed. tfdist's own servers exit sooner.
      log_dir: where each task's whole output is added to a file of its own; None if nowhere.
      make_printer: creates the printer of the tasks' lines, which may also show what they do.
      preload: modules that a fork server imports once for all tasks, if there is more than one
        start. Without any, each task is a new process.
    """

    grace_period: float = 30.0
    max_restarts: int = 0
    restart_delay: float = 1.0
    shutdown_timeout: float = 30.0
    server_timeout: float = 5.0
    log_dir: Path | None = None
    make_printer: Callable[[], Printer] = Printer
    preload: tuple[str, ...] = ()
