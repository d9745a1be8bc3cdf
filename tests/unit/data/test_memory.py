"""The available memory, read from the files of Linux."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from tfdist.data import memory

pytestmark = pytest.mark.stacks("newest")

MEMINFO = "MemTotal:       2000 kB\nMemFree:        100 kB\nMemAvailable:   1000 kB\n"
UNLIMITED = "9223372036854771712\n"
VERSION_1 = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
VERSION_2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 1_024_000),
        (
            {
                "proc/self/mountinfo": VERSION_2,
                "proc/self/cgroup": "0::/\n",
                "sys/fs/cgroup/memory.max": "5000\n",
            },
            5000,
        ),
        # The smallest limit of the group and its parents.
        (
            {
                "proc/self/mountinfo": VERSION_2,
                "proc/self/cgroup": "0::/jobs/one\n",
                "sys/fs/cgroup/jobs/one/memory.max": "max\n",
                "sys/fs/cgroup/jobs/memory.max": "5000\n",
            },
            5000,
        ),
        (
            {
                "proc/self/mountinfo": VERSION_2,
                "proc/self/cgroup": "0::/jobs/one\n",
                "sys/fs/cgroup/jobs/one/memory.max": "9000000\n",
            },
            1_024_000,
        ),
        # Cgroup version 1, in a container that sees the path of the host and its own limit.
        (
            {
                "proc/self/mountinfo": VERSION_1,
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "6000\n",
            },
            6000,
        ),
        (
            {
                "proc/self/mountinfo": VERSION_1,
                "proc/self/cgroup": "4:hugetlb,memory:/a\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": UNLIMITED,
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "7000\n",
            },
            7000,
        ),
    ],
)
def test_the_smallest_limit_counts(
    tmp_path: Path, files: dict[str, str], available: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {**files, "proc/meminfo": MEMINFO}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))
    assert memory.available(tmp_path) == available


def test_the_available_memory_of_this_machine_is_plausible() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 10_000_000 < memory.available() <= total
