"""Runs a job on several hosts from one terminal.

    sys.exit(run_on_hosts(job, hosts_of("a,b:2"), ["ssh"], environ=os.environ, supervision=…))

Each host has one connection. The tasks' environment and the job's token go through it, and not onto
a command line, which every user of the host can read.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tfdist.tools.launch.host_discovery import Host
from tfdist.tools.launch.job_spec import JobSpec
from tfdist.tools.launch.membership import Membership
from tfdist.tools.launch.remote.panel_rows import HostTasks, rows_file
from tfdist.tools.launch.remote.plan import plan
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.supervisor import Supervisor
from tfdist.tools.launch.task_plan import TaskSpec

# Added to the grace period, so that the tasks of a host can end.
_MARGIN_SECONDS = 10.0


def run_on_hosts(
    job: JobSpec,
    hosts: Sequence[Host],
    ssh: Sequence[str],
    *,
    environ: Mapping[str, str],
    supervision: Supervision,
    tls: bool = False,
    has_panel: bool = False,
) -> int:
    """Runs a job to its end and returns the exit code, as `Supervisor.run` does.

    Args:
      job: what to run; its number of workers is that of the slots that the chief leaves.
      hosts: the hosts; Python and the current directory have the same paths there as here.
      ssh: the command of ssh, and its arguments.
      environ: the environment; variables that change how TensorFlow computes are passed on.
      supervision: when to end, kill and restart tasks.
      tls: whether the tasks connect to each other over TLS.
      has_panel: whether a panel shows the tasks at the end of the terminal.

    Raises:
      UsageError: there are too few slots.
    """
    plans = plan(job, hosts, environ=environ, tls=tls)
    # What every host is told, in addition to its plan.
    common = {
        "directory": os.getcwd(),
        "grace_period": supervision.grace_period,
        "tells": has_panel,
    }
    with tempfile.TemporaryDirectory(prefix="tfdist-hosts-") as directory:
        files = {host: Path(directory, f"{number}.json") for number, host in enumerate(plans)}
        tasks = []
        for host, file in files.items():
            file.touch(mode=0o600)
            file.write_text(json.dumps({**common, **plans[host]}))
            client = (sys.executable, "-m", "tfdist.tools.launch.remote.client", host, str(file))
            tasks.append(TaskSpec(host, (*client, *ssh), {"PYTHONUNBUFFERED": "1"}))
        if has_panel:
            from tfdist.tools.launch.screen import Screen  # It imports rich.

            def watch(host: str) -> HostTasks:
                return HostTasks(host, rows_file(files[host]))

            supervision = replace(supervision, make_printer=lambda: Screen(watch))
        grace_period = supervision.grace_period + _MARGIN_SECONDS
        supervision = replace(supervision, grace_period=grace_period)
        return Supervisor(Membership(tasks), environ, supervision).run()
