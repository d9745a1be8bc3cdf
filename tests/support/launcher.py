"""`tfdist` in a copy of a process that has imported TensorFlow; its fork server is a copy, too.

    launcher.py run --workers=2 train.py

It does the same as `python -m tfdist`, without the seconds of a core that the import takes in each
job. Most jobs of the tests take less for everything else. `processes.copy` starts it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from multiprocessing import util
from unittest import mock

from tfdist.tools.commands import cli
from tfdist.tools.launch import forkserver, supervisor
from tfdist.tools.launch.task_plan import TaskSpec


def fork_python(path: bytes, arguments: Sequence[str], descriptors: Sequence[int]) -> int:
    """Runs the program of `python -c` in a copy of this process; as `util.spawnv_passfds`."""
    pid = os.fork()
    if pid == 0:
        try:
            # As the fork server does when it imports the module, which this process has imported.
            forkserver._prepare_server()
            exec(arguments[-1], {})
        finally:
            os._exit(0)
    return pid


def of_every_job(tasks: Sequence[TaskSpec], *_: object) -> forkserver.ForkServer | None:
    """As `forkserver.fork_server_of`, also for a task that is alone in its job."""
    return None if any(task.command[1] == "-m" for task in tasks) else fork_server


if __name__ == "__main__":
    with mock.patch.object(util, "spawnv_passfds", fork_python):
        fork_server = forkserver.ForkServer([], {})
    with mock.patch.object(supervisor, "fork_server_of", of_every_job):
        sys.exit(cli.main())
