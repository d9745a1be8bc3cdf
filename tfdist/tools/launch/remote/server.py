"""The remote end of a connection: starts the tasks of a host, and ends them when it closes.

    ssh host python -m tfdist.tools.launch.remote.server < plan

The first line of the standard input is the plan. Each further line is the number of a signal for
the tasks, or 0, which shows that the launcher lives. When there is none for `SILENCE_SECONDS`, or
at the end of the input, the tasks get SIGTERM. The last line of the output is the exit code,
because ssh reports 255 for whatever a signal has ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any

from tfdist.cluster import Cluster, Task
from tfdist.errors import EXIT_USAGE, log
from tfdist.process.cores import given_cores
from tfdist.tools.launch.membership import Membership
from tfdist.tools.launch.output import Printer
from tfdist.tools.launch.remote.panel_rows import RowPrinter
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.supervisor import Supervisor
from tfdist.tools.launch.task_plan import Place, ScriptSpec, TaskSpec, task_plan

#: How often the launcher shows that it lives, and how long the tasks run without it, in seconds.
SIGN_SECONDS, SILENCE_SECONDS = 2.0, 30.0
#: Precedes the exit code in the last line.
EXIT_MARK = "\x1etfdist exit "


def read_plan(plan: Mapping[str, Any], environ: Mapping[str, str]) -> list[TaskSpec]:
    """The tasks of this host, which divide its cores.

    Args:
      plan: the message to this host, from `plan.plan`.
      environ: the environment that the tasks inherit.
    """
    job, cluster = ScriptSpec(**plan["job"]), Cluster(**plan["cluster"])
    place = Place(
        environ=environ,
        computing=[*map(Task.named, plan["computing"])],
        cores=given_cores(environ),
        executes=plan["executes"],
    )
    return [task_plan(job, cluster, Task.named(name), place) for name in plan["tasks"]]


def main() -> int:
    """Runs the tasks of the plan from standard input; returns the exit code."""
    # Without a buffer, `select` sees each line that has arrived.
    lines = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    plan = json.loads(lines.readline())
    try:
        os.chdir(plan["directory"])
    except OSError as error:
        log(f"error: {plan['directory']}: {error.strerror} on this host")
        return EXIT_USAGE
    threading.Thread(target=_obey, args=[lines], daemon=True).start()
    environ = {**os.environ, **plan["variables"]}
    make_printer = RowPrinter if plan["tells"] else Printer
    options = Supervision(grace_period=plan["grace_period"], make_printer=make_printer)
    return Supervisor(Membership(read_plan(plan, environ)), environ, options).run()


def _obey(lines: IO[bytes]) -> None:
    """Passes the launcher's signals to this process, and SIGTERM when the launcher is gone."""
    while select.select([lines], [], [], SILENCE_SECONDS)[0] and (line := lines.readline()):
        if number := int(line):
            os.kill(os.getpid(), number)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    code = main()
    print(f"{EXIT_MARK}{code}", flush=True)
    # A thread waits for the input.
    os._exit(0)
