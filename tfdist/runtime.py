"""What must be set before TensorFlow is imported: oneDNN, threads, log level.

    os.environ.update(runtime.environment())            # at `import tfdist`
    runtime.environment(intra_threads=1)                # what a launcher gives a task

TensorFlow reads these once, at its own import, so `import tfdist` comes before it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

# TensorFlow leaves oneDNN off on x86 CPUs without AVX512-VNNI, where it is up to 2.7 times faster.
ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
OPENMP_VARIABLE = "OMP_NUM_THREADS"
_DEFAULTS = {
    ONEDNN_VARIABLE: "1",
    # Information is left out; warnings and errors, such as a port in use, are kept.
    "TF_CPP_MIN_LOG_LEVEL": "1",
}


def environment(intra_threads: int | None = None) -> dict[str, str]:
    """The variables of one task.

    Args:
      intra_threads: threads within one operation, where several tasks share a machine.
    """
    if intra_threads is None:
        return dict(_DEFAULTS)
    return {
        **_DEFAULTS,
        "TF_NUM_INTRAOP_THREADS": str(intra_threads),
        OPENMP_VARIABLE: str(intra_threads),
    }


def set_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets what the user has not set; of no effect on a TensorFlow that is already imported."""
    if "tensorflow" not in sys.modules:
        for name, value in _DEFAULTS.items():
            environ.setdefault(name, value)
