"""Sets up this process before TensorFlow runs: oneDNN, threads, log level.

    runtime.set_environment()               # at `import tfdist`
    runtime.environment(intra_threads=1)    # the variables that a launcher sets for a task
    runtime.description()                   # 'oneDNN on, core 0 of 2'

TensorFlow reads the environment once, when it is imported, so import tfdist first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from functools import cache
from pathlib import Path

from tfdist.process import cores, log_level

ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
#: The environment variable of a task that describes its model, and does not train.
DRY_RUN_VARIABLE = "TFDIST_DRY_RUN"


def environment(
    intra_threads: int | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment variables of one task.

    Args:
      intra_threads: threads within one operation, if several tasks share the machine.
      environ: the environment that the task inherits.
    """
    result = {log_level.VARIABLE: log_level.of(sys.argv[1:])}
    if onednn_is_faster(cpu_flags()):
        result[ONEDNN_VARIABLE] = "1"
    return result | cores.thread_variables(intra_threads, environ)


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


def description(environ: Mapping[str, str] = os.environ) -> str:
    """The settings of this process for the log: `oneDNN on, core 0 of 2`."""
    onednn = {"0": "off", "1": "on"}.get(environ.get(ONEDNN_VARIABLE, ""), "as TensorFlow chooses")
    return f"oneDNN {onednn}, {cores.description(environ)}"


def cpu_flags() -> frozenset[str]:
    """The flags of the first core; empty if they are unknown."""
    return frozenset(cpu_info().get("flags", "").split())


@cache
def cpu_info() -> Mapping[str, str]:
    """What Linux says of the first core, such as its `model name` and its `flags`, by name."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text().partition("\n\n")
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
