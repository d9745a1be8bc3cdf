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
# Libraries print, too.
_MARK = "facts "


def try_all() -> dict[str, Facts]:
    """By library, what is known of it, or why it cannot be imported."""
    found: dict[str, Facts] = {}
    while left := [name for name in _LIBRARIES if name not in found]:
        # One process for all, because each of them imports TensorFlow; after a failure another one.
        facts, problem = _try(left)
        found |= zip(left, facts, strict=False)
        if problem and len(facts) < len(left):
            found[left[len(facts)]] = {"import": problem}
    return found


def _try(names: list[str]) -> tuple[list[Facts], str]:
    """What is known of the first of these libraries, and why not of the next one."""
    command = [sys.executable, "-P", "-m", __name__, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        printed, problem = done.stdout, f"fails with code {done.returncode}: "
        problem += next(reversed(done.stderr.strip().splitlines()), "no message")
    except subprocess.TimeoutExpired as error:
        printed = (error.stdout or b"").decode()
        problem = f"does not end within {_SECONDS:g} s"
    lines = printed.splitlines()
    marked = [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
    return [json.loads(line) for line in marked], problem


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


def main(names: list[str]) -> None:
    """Imports libraries, and prints what is known of each as a line of JSON."""
    for name in names:
        begun = time.monotonic()
        facts = {**_LIBRARIES[name](), "import": f"{time.monotonic() - begun:.1f} s"}
        print(_MARK + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
