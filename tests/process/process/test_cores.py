"""The cores that a process was given, how tasks divide them, and the threads that follow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.process import cores as runtime

pytestmark = pytest.mark.stacks("2.15", "newest")

CORES = os.sched_getaffinity(0)
ROOT = Path(__file__).parents[3]
NAMES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")

PATHS_V1 = "4:cpuset:/a\n3:cpu,cpuacct:/a/b\n1:name=systemd:/c\n0::/c\n"
CPU = "sys/fs/cgroup/cpu"


def tree(root: Path, paths: str, files: dict[str, str]) -> None:
    """Creates the files that describe a process's cgroups below `root`."""
    written = {"proc/self/cgroup": paths}
    for name, text in files.items():
        written[f"{CPU if 'cfs' in name else 'sys/fs/cgroup'}/{name}"] = text
    for name, text in written.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def set_quota(root: Path, cpus: float | None) -> None:
    if cpus is not None:
        tree(root, "0::/\n", {"cpu.max": f"{int(cpus * 1e5)} 100000\n"})


def v1(quota: int, directory: str = "") -> dict[str, str]:
    """The quota of a cgroup of version 1, in microseconds of 50,000."""
    return {
        f"{directory}cpu.cfs_quota_us": f"{quota}\n",
        f"{directory}cpu.cfs_period_us": "50000\n",
    }


@pytest.fixture(autouse=True)
def machine_with_8_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_ROOT", tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


@pytest.mark.parametrize(
    ("paths", "files", "cores"),
    [
        (PATHS_V1, v1(150_000, "a/b/"), 3),
        (PATHS_V1, v1(-1, "a/b/"), 8),
        # The least of all levels counts; a quota is rounded down, but not to 0.
        (PATHS_V1, {**v1(150_000, "a/b/"), **v1(149_999, "a/"), **v1(-1)}, 2),
        (PATHS_V1, {**v1(-1, "a/b/"), **v1(20_000)}, 1),
        # The files of other cgroups are not read.
        (PATHS_V1, {**v1(-1, "a/b/"), **v1(50_000, "c/")}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "350000 100000\n"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "900000 100000\n"}, 8),
        # A container that sees its path on the machine: its own cgroup is the top of the mount.
        ("0::/kubepods/pod\n", {"cpu.max": "200000 100000\n"}, 2),
        ("3:cpu,cpuacct:/docker/1\n", v1(100_000), 2),
        # Both versions are mounted, and one of them has the controller.
        (PATHS_V1, {"c/cpu.max": "200000 100000\n"}, 2),
        ("", {}, 8),
    ],
    ids=[
        "v1",
        "v1_without_quota",
        "v1_levels",
        "v1_top_level",
        "v1_others",
        "v2",
        "v2_levels",
        "v2_above_the_affinity",
        "v2_container",
        "v1_container",
        "v1_and_v2",
        "no_cgroups",
    ],
)
def test_a_cgroup_limits_the_cores(
    tmp_path: Path, paths: str, files: dict[str, str], cores: int
) -> None:
    tree(tmp_path, paths, files)
    assert runtime.given_cores({}) == cores


@pytest.mark.parametrize(
    ("environ", "cores"),
    [
        ({}, 4),
        ({"SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "2", "SLURM_CPUS_ON_NODE": "1"}, 2),
        ({"SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "6"}, 4),
        # A batch script runs on all CPUs of its allocation.
        ({"SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_ON_NODE": "3"}, 3),
        ({"SLURM_CPUS_ON_NODE": "many"}, 4),
        ({"SLURM_CPUS_ON_NODE": "0"}, 4),
        # A limit of each task, which the tasks of `tfdist run` do not divide.
        ({"OMP_NUM_THREADS": "1"}, 4),
    ],
)
def test_slurm_limits_the_cores_too(tmp_path: Path, environ: dict[str, str], cores: int) -> None:
    set_quota(tmp_path, 4)
    assert runtime.given_cores(environ) == cores


def test_a_process_without_proc_has_the_cores_of_its_affinity() -> None:
    assert runtime.given_cores({}) == 8


@pytest.mark.parametrize(
    ("tasks", "cores", "shares"),
    [
        (2, {0, 1, 2, 3}, [{0, 1}, {2, 3}]),
        (3, {4, 5, 6, 7}, [{4}, {5}, {6, 7}]),
        (2, {1, 9}, [{1}, {9}]),
        (3, {0, 1}, [{0, 1}] * 3),
    ],
)
def test_cores_are_divided(tasks: int, cores: set[int], shares: list[set[int]]) -> None:
    found = [runtime.cores_of(place, tasks, frozenset(cores)) for place in range(tasks)]

    assert found == shares


@pytest.mark.parametrize(
    ("quota", "environ", "variables"),
    [
        (None, {}, (None, None, None)),
        (2.5, {}, ("2", "2", "2")),
        (0.5, {}, ("1", "2", "1")),
        (4, {"OMP_NUM_THREADS": "3"}, ("3", "4", "3")),
        (4, {"OMP_NUM_THREADS": "6"}, ("4", "4", "6")),
        (4, dict(zip(NAMES, "567", strict=True)), ("5", "6", "7")),
        (None, {"OMP_NUM_THREADS": "1"}, ("1", None, "1")),
        # The numbers of threads of nested loops.
        (None, {"OMP_NUM_THREADS": "3,2"}, ("3", None, "3,2")),
        (None, {"OMP_NUM_THREADS": "all"}, ("8", None, "all")),
    ],
)
def test_threads_follow_the_limits(
    tmp_path: Path,
    quota: float | None,
    environ: dict[str, str],
    variables: tuple[str | None, ...],
) -> None:
    environ = dict(environ)
    set_quota(tmp_path, quota)

    runtime.set_threads(environ)

    assert tuple(map(environ.get, NAMES)) == variables


def test_one_core_gets_two_inter_op_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    environ: dict[str, str] = {}

    runtime.set_threads(environ)

    assert environ == {"TF_NUM_INTEROP_THREADS": "2"}


@pytest.mark.parametrize(
    ("affinity", "quota", "environ", "text"),
    [
        (range(8), None, {}, "cores 0-7 of 8"),
        ({1, 5}, None, {"OMP_NUM_THREADS": "2"}, "2 cores of 8"),
        ({5}, 4, {"SLURM_CPUS_ON_NODE": "2", "OMP_NUM_THREADS": "1"}, "core 5 of 8"),
        (range(8), 2, {"OMP_NUM_THREADS": "2"}, "2 threads (cgroup quota) of 8 cores"),
        (range(2), 1, {"SLURM_CPUS_ON_NODE": "4"}, "1 thread (cgroup quota) of 8 cores"),
        (range(8), None, {"OMP_NUM_THREADS": "3"}, "3 threads (OMP_NUM_THREADS) of 8 cores"),
        (
            range(8),
            4,
            {"SLURM_CPUS_ON_NODE": "4", "OMP_NUM_THREADS": "2"},
            "2 threads (SLURM_CPUS_ON_NODE, cgroup quota, OMP_NUM_THREADS) of 8 cores",
        ),
    ],
)
def test_the_description_names_what_limits_the_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    affinity: set[int],
    quota: float | None,
    environ: dict[str, str],
    text: str,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity)
    set_quota(tmp_path, quota)

    assert runtime.description(environ) == text


@pytest.mark.parametrize("share", [None, "1/2"])
def test_a_task_is_pinned_to_its_cores(tmp_path: Path, share: str | None) -> None:
    environ = {"TFDIST_CORES": share} if share else {}
    code = (
        "import os, pathlib, sys, threading; from tfdist.process import cores as runtime;"
        "runtime._ROOT = pathlib.Path(sys.argv[1]);"
        "runtime.take_cores();"
        "assert os.environ.get(runtime.CORES_VARIABLE) in (None, '0/1');"
        "thread = threading.Thread(target=lambda: print(*os.sched_getaffinity(0)));"
        "thread.start(); thread.join()"
    )

    printed = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        env={"PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout

    own = sorted(CORES)
    mine = own[len(own) // 2 :] if share and len(own) > 1 else own
    assert sorted(map(int, printed.split())) == mine


@pytest.mark.parametrize(
    ("tasks", "own", "quota", "variable", "kept"),
    [
        (2, set(range(8)), None, None, {4, 5, 6, 7}),
        (8, set(range(8)), None, None, {7}),
        (1, set(range(8)), None, None, None),
        (2, set(range(8)), 8, None, {4, 5, 6, 7}),
        # Slurm or a container has already restricted the affinity or the time.
        (2, {2, 3}, None, None, None),
        (2, set(range(8)), 4, None, None),
        # `tfdist run`, with and without a quota, and with `--cores=share`.
        (2, {2, 3}, None, "1/2", {3}),
        (2, set(range(8)), 4, "1/2", None),
        (2, set(range(8)), None, runtime.ALL_CORES, None),
    ],
)
def test_tasks_divide_the_cores_of_their_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tasks: int,
    own: set[int],
    quota: float | None,
    variable: str | None,
    kept: set[int] | None,
) -> None:
    affinity = [own]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: affinity[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: affinity.append(set(cores)))
    environ = {} if variable is None else {runtime.CORES_VARIABLE: variable}
    set_quota(tmp_path, quota)

    for _ in range(2):  # The second time is that of a child process.
        runtime.take_cores(environ)
        runtime.divide_cores(tasks - 1, tasks, environ)

    assert affinity[-1] == (own if kept is None else kept)
    is_divided = variable is not None or kept is not None
    assert environ.get(runtime.CORES_VARIABLE) == (runtime.ALL_CORES if is_divided else None)
