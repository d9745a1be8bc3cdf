"""Finds the cores that this process may use, and sets the numbers of threads to match.

    given_cores(os.environ)         # the least of CPU affinity, cgroup quota and Slurm's number
    take_cores()                    # in the task of a launcher: pins it to its share of the cores
    divide_cores(0, 2)              # in a task without a launcher
    set_threads()                   # in every task, before TensorFlow creates its threads
    description()                   # 'core 0 of 2', or '1 thread (cgroup quota) of 2 cores'

TensorFlow creates a thread per core of the CPU affinity. It does not know the other limits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from tfdist.errors import ERROR_FILE_VARIABLE

INTRA_OP_VARIABLE = "TF_NUM_INTRAOP_THREADS"
OPENMP_VARIABLE = "OMP_NUM_THREADS"
#: `0/2` means that two tasks share this machine's cores and this is the first of them; `0/1` means
#: that this task may use all cores.
CORES_VARIABLE = "TFDIST_CORES"
ALL_CORES = "0/1"
_INTER_OP_VARIABLE = "TF_NUM_INTEROP_THREADS"
# With one inter-op thread, a worker of a parameter-server job deadlocks.
_MIN_INTER_OP_THREADS = 2
# The directory that contains `proc` and `sys`.
_ROOT = Path("/")


def given_cores(environ: Mapping[str, str] = os.environ) -> int:
    """The number of cores that this process may use at the same time.

    Args:
      environ: the environment, for Slurm's variables.
    """
    return min([_affinity(), *_limits(environ).values()])


def cores_of(place: int, tasks: int, cores: frozenset[int]) -> frozenset[int]:
    """The cores of one of several tasks; all cores if there are fewer cores than tasks.

    Args:
      place: the index of the task, from 0.
      tasks: the number of tasks that divide the cores.
      cores: the numbers of the cores; each task gets adjacent ones.
    """
    if tasks > len(cores):
        return cores
    ordered = sorted(cores)
    return frozenset(ordered[place * len(cores) // tasks : (place + 1) * len(cores) // tasks])


def take_cores(environ: MutableMapping[str, str] = os.environ) -> None:
    """Pins the threads that this process creates from now on to its share of the cores.

    An unpinned thread competes for the core and the cache of another task. Afterwards the variable
    tells child processes not to divide these cores again. Does not pin if a quota or Slurm gives
    this process fewer cores than its affinity has, because no particular cores are then its own.
    """
    share = environ.get(CORES_VARIABLE)
    if not share:
        return
    environ[CORES_VARIABLE] = ALL_CORES
    if not _limits(environ):
        place, tasks = map(int, share.split("/"))
        os.sched_setaffinity(0, cores_of(place, tasks, frozenset(os.sched_getaffinity(0))))


def divide_cores(place: int, tasks: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Like `take_cores`, for a task that was started by hand.

    Does nothing if a launcher has set the variable, or if this process may not use all cores of the
    machine: the CPU affinity, a container's quota or Slurm then gives each task its own part.

    Args:
      place: the index of this task among the machine's tasks, from 0.
      tasks: the number of tasks that compute on this machine.
      environ: the environment.
    """
    is_restricted = given_cores(environ) != os.cpu_count()
    if tasks > 1 and not is_restricted and CORES_VARIABLE not in environ:
        environ[CORES_VARIABLE] = f"{place}/{tasks}"
        take_cores(environ)


def set_threads(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets the numbers of threads that TensorFlow does not derive from the CPU affinity itself.

    Keeps the variables that are already set.
    """
    cores = given_cores(environ)
    is_limited = bool(_limits(environ))
    threads = cores if is_limited or OPENMP_VARIABLE in environ else None
    variables = thread_variables(threads, environ)
    if is_limited:
        variables[_INTER_OP_VARIABLE] = str(max(_MIN_INTER_OP_THREADS, cores))
    for name, value in variables.items():
        environ.setdefault(name, value)


def thread_variables(threads: int | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of a task that has `threads` cores; None for all cores of its affinity.

    The user's OMP_NUM_THREADS limits TensorFlow's threads within one operation, too.
    """
    variables = {}
    if (threads or _affinity()) == 1:
        variables[_INTER_OP_VARIABLE] = str(_MIN_INTER_OP_THREADS)
    if threads is not None:
        intra_threads = min(threads, _number(environ.get(OPENMP_VARIABLE)) or threads)
        variables |= {INTRA_OP_VARIABLE: str(intra_threads), OPENMP_VARIABLE: str(threads)}
    return variables


def description(environ: Mapping[str, str] = os.environ) -> str:
    """The cores of this process for the log, or what limits it to fewer threads."""
    limits = _limits(environ)
    openmp = _number(environ.get(OPENMP_VARIABLE))
    launched = ERROR_FILE_VARIABLE in environ
    if openmp and openmp < given_cores(environ):
        limits[OPENMP_VARIABLE] = openmp
    if limits:
        threads = min(limits.values())
        plural = "" if threads == 1 else "s"
        # A launcher divides the cores by this variable.
        causes = ", ".join(limits.keys() - {OPENMP_VARIABLE} if launched else limits)
        return f"{threads} thread{plural} {causes and f'({causes}) '}of {os.cpu_count()} cores"
    cores = sorted(os.sched_getaffinity(0))
    first, last = cores[0], cores[-1]
    if len(cores) == 1:
        numbers = f"core {first}"
    elif last - first + 1 == len(cores):
        numbers = f"cores {first}-{last}"
    else:
        numbers = f"{len(cores)} cores"
    return f"{numbers} of {os.cpu_count()}"


def _affinity() -> int:
    return len(os.sched_getaffinity(0))


def _limits(environ: Mapping[str, str]) -> dict[str, int]:
    """The limits that are lower than the CPU affinity: numbers of cores by name."""
    # A batch script, outside of any step, may use all CPUs of its allocation.
    slurm = "SLURM_CPUS_PER_TASK" if "SLURM_STEP_ID" in environ else "SLURM_CPUS_ON_NODE"
    limits = {slurm: _number(environ.get(slurm))}
    if quotas := list(_quotas()):
        limits["cgroup quota"] = max(1, int(min(quotas)))
    return {name: cores for name, cores in limits.items() if cores and cores < _affinity()}


def _number(text: str | None) -> int | None:
    """Parses a number of threads; OpenMP accepts a list, with one for each level of nesting."""
    first = (text or "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else None


def _cgroups() -> Iterator[Path]:
    """The cgroups that may limit the cores of this process (cgroups(7), versions 1 and 2), each
    with those above it."""
    memberships = []
    with suppress(OSError):
        memberships = (_ROOT / "proc/self/cgroup").read_text().splitlines()
    for line in memberships:
        # Like `3:cpu,cpuacct:/path`; version 2 names no controllers: `0::/path`.
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            mount = _ROOT / "sys/fs/cgroup" / ("cpu" if controllers else "")
            own = mount / path.lstrip("/")
            # In a container the path may be the machine's. Then only the mount itself exists.
            yield from (each for each in (own, *own.parents) if each.is_relative_to(mount))


def _quotas() -> Iterator[float]:
    """The CPU quotas of this process's cgroups and of those above them, in cores."""
    for directory in _cgroups():
        with suppress(OSError, ValueError):  # Version 2; `max` is no limit.
            quota, period = map(int, (directory / "cpu.max").read_text().split())
            yield quota / period
        with suppress(OSError):  # Version 1; -1 is no limit.
            quota = int((directory / "cpu.cfs_quota_us").read_text())
            period = int((directory / "cpu.cfs_period_us").read_text())
            if quota > 0:
                yield quota / period
