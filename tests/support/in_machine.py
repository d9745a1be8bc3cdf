"""Runs a Python script on a machine of `namespaces.py`, in this process.

    in_machine.py MACHINE SCRIPT [ARGS ...]

Unlike `ip netns exec`, it starts no new program, so `processes.copy` can start it without the
seconds that importing TensorFlow takes.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys


def enter(machine: str) -> None:
    """Moves this thread, and the threads and processes that it starts, to a network namespace.

    Raises:
      OSError: there is no such namespace, or this process is not root.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{machine}", os.O_RDONLY)
    # Python has os.setns from 3.12. 0: any kind of namespace.
    if libc.setns(descriptor, 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), machine)
    os.close(descriptor)


if __name__ == "__main__":
    _, name, script, *arguments = sys.argv
    enter(name)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
