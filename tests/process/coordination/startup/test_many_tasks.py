"""Thousands of tasks at the startup barrier."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tests.support.many_tasks import cluster_of, run
from tests.support.startup import hello
from tfdist.coordination.startup.open_files import open_files
from tfdist.coordination.startup.protocol import encode

pytestmark = [pytest.mark.stacks("newest"), pytest.mark.timeout(300)]


def test_the_time_of_the_chief_grows_with_the_tasks_and_not_with_their_square() -> None:
    _, few = run(500)
    seconds, many = run(4000)
    # With eight times as many tasks: 8 on an idle machine, 64 if it grew with the square.
    assert many < 24 * few, f"{few:.2f} s for 500 tasks, {many:.2f} s for 4000"
    assert seconds < 180, "at most 10 s on a machine that does nothing else"
    large, small = (cluster_of(tasks, 1, 2) for tasks in (4000, 2))
    task = small.chief_task
    assert len(encode(hello(large, task))) == len(encode(hello(small, task)))


def test_a_low_limit_of_open_files_is_one_sentence() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)); "
        "from tests.support.many_tasks import run_chief; run_chief(4000, 3000, 3001)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.stderr.splitlines()[-1] == (
        "tfdist.errors.UsageError: limit of open files: received 1024; accepted: at least 8034 in "
        "a job of 4001 tasks. Raise it on each machine before the start, with `ulimit -n 8034` or "
        "in the configuration of the system that starts the tasks."
    )


def test_the_soft_limit_of_open_files_is_raised_during_the_barrier_alone() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        with open_files(cluster_of(100, 1, 2)):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (234, hard)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
