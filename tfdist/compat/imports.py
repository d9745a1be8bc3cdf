"""Imports TensorFlow, Keras and Horovod, and reports their versions and builds.

    found = imports.try_all()        # {"TensorFlow": {"devices": "1 CPU", …}, "Horovod": {…}}

They are imported in another process, which may end with a signal or not end at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

#: By name, what a person reads.
Facts = dict[str, str]

_SECONDS = 120.0


def try_all() -> dict[str, Facts]:
    """By library, what is known of it, or why it cannot be imported."""
    return {name: _try(name) for name in _LIBRARIES}


def _try(name: str) -> Facts:
    command = [sys.executable, "-P", "-m", __name__, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        return {"import": f"does not end within {_SECONDS:g} s"}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    lines = done.stderr.strip().splitlines() or ["no message"]
    return {"import": f"fails with code {done.returncode}: {lines[-1]}"}


def _tensorflow() -> Facts:
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    devices = Counter(device.device_type for device in tf.config.list_physical_devices())
    return {
        "version": tf.__version__,
        "CUDA": str(build.get("cuda_version", "none")) if build["is_cuda_build"] else "none",
        "devices": ", ".join(f"{number} {kind}" for kind, number in sorted(devices.items())),
    }


def _keras() -> Facts:
    import tensorflow as tf

    # `keras` or `tf_keras`.
    package = tf.keras.Model.__module__.partition(".")[0]
    return {"package of tf.keras": package, "version": sys.modules[package].__version__}


def _horovod() -> Facts:
    import horovod
    import horovod.tensorflow as hvd

    parts = {"Gloo": hvd.gloo_built(), "MPI": hvd.mpi_built(), "NCCL": bool(hvd.nccl_built())}
    built = ", ".join(name for name, is_built in parts.items() if is_built)
    return {"version": horovod.__version__, "built with": built or "nothing"}


_LIBRARIES: dict[str, Callable[[], Facts]] = {
    "TensorFlow": _tensorflow,
    "Keras": _keras,
    "Horovod": _horovod,
}


def main(name: str) -> None:
    """Imports a library, and prints what is known of it as a line of JSON."""
    begun = time.monotonic()
    facts = _LIBRARIES[name]()
    print(json.dumps({**facts, "import": f"{time.monotonic() - begun:.1f} s"}))


if __name__ == "__main__":
    main(sys.argv[1])
