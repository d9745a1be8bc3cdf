"""Sets up this process before TensorFlow runs: oneDNN, threads, cores, log level.

    runtime.set_environment()               # at `import tfdist`
    runtime.environment(intra_threads=1)    # the variables that a launcher sets for a task
    runtime.take_cores()                    # in the task, before TensorFlow creates its threads
    runtime.divide_cores(0, 2)              # in a task without a launcher
    runtime.description()                   # 'oneDNN on, core 0 of 2'

TensorFlow reads the environment once, when it is imported, so import tfdist first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from functools import cache
from pathlib import Path

ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
OPENMP_VARIABLE = "OMP_NUM_THREADS"
#: `0/2` means that two tasks share this machine's cores and this is the first of them; `0/1` means
#: that this task may use all cores.
CORES_VARIABLE = "TFDIST_CORES"
ALL_CORES = "0/1"
_DEFAULTS = {
    # Hides information; shows warnings and errors, such as a port in use.
    "TF_CPP_MIN_LOG_LEVEL": "1",
}
# On one core TensorFlow creates one inter-op thread. With that, a worker of a parameter-server job
# deadlocks.
_ON_ONE_CORE = {"TF_NUM_INTEROP_THREADS": "2"}


def environment(intra_threads: int | None = None) -> dict[str, str]:
    """The environment variables of one task.

    Args:
      intra_threads: threads within one operation, if several tasks share the machine.
    """
    result = dict(_DEFAULTS)
    if (intra_threads or len(os.sched_getaffinity(0))) == 1:
        result |= _ON_ONE_CORE
    if onednn_is_faster(_cpu_flags()):
        result[ONEDNN_VARIABLE] = "1"
    if intra_threads is not None:
        result["TF_NUM_INTRAOP_THREADS"] = str(intra_threads)
        result[OPENMP_VARIABLE] = str(intra_threads)
    return result


def onednn_is_faster(cpu_flags: frozenset[str]) -> bool:
    """Whether TensorFlow trains faster with oneDNN on a CPU with these flags (as Linux names them).

    Measured (docs/benchmarks.md): twice as fast with AVX2, 2.5 times as fast with AVX-512, and half
    as fast with older instruction sets. TensorFlow 2.15 turns oneDNN on only with AVX512-VNNI.
    """
    return "avx2" in cpu_flags


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets the variables that the user has not set, unless TensorFlow is already imported."""
    if "tensorflow" not in sys.modules:
        for name, value in environment().items():
            environ.setdefault(name, value)


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
    tells child processes not to divide these cores again.
    """
    share = environ.get(CORES_VARIABLE)
    if not share:
        return
    environ[CORES_VARIABLE] = ALL_CORES
    place, tasks = map(int, share.split("/"))
    os.sched_setaffinity(0, cores_of(place, tasks, frozenset(os.sched_getaffinity(0))))
    if len(os.sched_getaffinity(0)) == 1:
        for name, value in _ON_ONE_CORE.items():
            environ.setdefault(name, value)


def divide_cores(place: int, tasks: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Like `take_cores`, for a task that was started by hand.

    Does nothing if a launcher has set the variable, or if Slurm, `taskset` or a container already
    restricts this process to some of the machine's cores.

    Args:
      place: the index of this task among the machine's tasks, from 0.
      tasks: the number of tasks that compute on this machine.
    """
    is_restricted = len(os.sched_getaffinity(0)) != os.cpu_count()
    if tasks > 1 and not is_restricted and CORES_VARIABLE not in environ:
        environ[CORES_VARIABLE] = f"{place}/{tasks}"
        take_cores(environ)


def description(environ: Mapping[str, str] = os.environ) -> str:
    """The settings of this process for the log: `oneDNN on, core 0 of 2`."""
    onednn = {"0": "off", "1": "on"}.get(environ.get(ONEDNN_VARIABLE, ""), "as TensorFlow chooses")
    cores = sorted(os.sched_getaffinity(0))
    first, last = cores[0], cores[-1]
    if len(cores) == 1:
        numbers = f"core {first}"
    elif last - first + 1 == len(cores):
        numbers = f"cores {first}-{last}"
    else:
        numbers = f"{len(cores)} cores"
    return f"oneDNN {onednn}, {numbers} of {os.cpu_count()}"


@cache
def _cpu_flags() -> frozenset[str]:
    """The flags of the first core from /proc/cpuinfo; empty if they are unknown."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "flags":
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()
