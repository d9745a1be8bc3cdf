"""What is set before TensorFlow runs: oneDNN, threads, cores, log level.

    runtime.set_environment()               # at `import tfdist`
    runtime.environment(intra_threads=1)    # what a launcher gives a task
    runtime.take_cores()                    # in the task, before TensorFlow makes its threads
    runtime.divide_cores(0, 2)              # in one that no launcher has told of its share
    runtime.description()                   # 'oneDNN on, core 0 of 2'

TensorFlow reads the environment once, at its own import, so `import tfdist` comes before it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from functools import cache
from pathlib import Path

ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
OPENMP_VARIABLE = "OMP_NUM_THREADS"
#: `0/2` tells a task that two share its machine's cores, and that it is the first of them; `0/1`
#: that all are its own.
CORES_VARIABLE = "TFDIST_CORES"
ALL_CORES = "0/1"
_DEFAULTS = {
    # Information is left out; warnings and errors, such as a port in use, are kept.
    "TF_CPP_MIN_LOG_LEVEL": "1",
}
# TensorFlow makes one on one core, with which a worker of a ps waits for itself for ever.
_ON_ONE_CORE = {"TF_NUM_INTEROP_THREADS": "2"}


def environment(intra_threads: int | None = None) -> dict[str, str]:
    """The variables of one task.

    Args:
      intra_threads: threads within one operation, where several tasks share a machine.
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
    """Whether TensorFlow trains faster with oneDNN on a CPU with these of Linux's flags.

    As measured (BENCHMARKS.md): with AVX2 twice as fast, with AVX-512 2.5 times, with less half as
    fast. TensorFlow 2.15 itself turns it on only where there is AVX512-VNNI.
    """
    return "avx2" in cpu_flags


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets what the user has not set; of no effect on a TensorFlow that is already imported."""
    if "tensorflow" not in sys.modules:
        for name, value in environment().items():
            environ.setdefault(name, value)


def cores_of(place: int, tasks: int, cores: frozenset[int]) -> frozenset[int]:
    """The cores of one of several tasks; all of them where there is less than one for each.

    Args:
      place: which of the tasks, from 0.
      tasks: how many divide the cores.
      cores: numbers of cores; neighbours stay together.
    """
    if tasks > len(cores):
        return cores
    ordered = sorted(cores)
    return frozenset(ordered[place * len(cores) // tasks : (place + 1) * len(cores) // tasks])


def take_cores(environ: MutableMapping[str, str] = os.environ) -> None:
    """Keeps the threads that this process makes from now on to its share of the cores.

    A thread that wanders takes the place and the cache of another task's. What this process starts
    shares its cores and must not divide them again, which the variable says from then on.
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
    """As `take_cores`, for a task that was started by hand.

    It is left as it is where a launcher has said something, or where Slurm, `taskset` or a
    container keeps it to some of the machine's cores already.

    Args:
      place: which of this machine's tasks it is, from 0.
      tasks: how many compute there.
    """
    is_kept = len(os.sched_getaffinity(0)) != os.cpu_count()
    if tasks > 1 and not is_kept and CORES_VARIABLE not in environ:
        environ[CORES_VARIABLE] = f"{place}/{tasks}"
        take_cores(environ)


def description(environ: Mapping[str, str] = os.environ) -> str:
    """What was chosen, for the user: `oneDNN on, core 0 of 2`."""
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
    """What the first core can do, in the words of Linux; empty where it does not say."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "flags":
                    return frozenset(value.split())
    except OSError:
        pass
    return frozenset()
