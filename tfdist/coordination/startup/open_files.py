"""Raises the limit of open files while all tasks of a job connect to each other.

with open_files(cluster):      # raises the soft limit if it must
    ...
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from tfdist.cluster import Cluster
from tfdist.errors import UsageError

# Those that a process has open in addition, at least.
_OTHER_FILES = 32


@contextmanager
def open_files(cluster: Cluster) -> Iterator[None]:
    """Allows a connection to and from each task; the soft limit is restored afterwards.

    Raises:
      UsageError: the hard limit is too low for the cluster.
    """
    tasks = len(cluster.tasks())
    needed = 2 * tasks + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < needed:
        raise UsageError(
            "limit of open files",
            received=hard,
            accepted=f"at least {needed} in a job of {tasks} tasks",
            remedy=f"Raise it on each machine before the start, with `ulimit -n {needed}` or in "
            "the configuration of the system that starts the tasks.",
        )
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
