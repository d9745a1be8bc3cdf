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
from tfdist.tools.launch import forkserver
from tfdist.tools.launch.supervisor import Supervisor


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


if __name__ == "__main__":
    with mock.patch.object(util, "spawnv_passfds", fork_python):
        fork_server = forkserver.ForkServer([], {})
    # Without this, a task that is alone in its job would be a new process.
    with mock.patch.object(Supervisor, "_make_server", return_value=fork_server):
        sys.exit(cli.main())
