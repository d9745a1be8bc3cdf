"""Runs a training script as the main program of this process, as Python's command line does.

    python -P tfdist/tools/launch/run_script.py package.module --epochs=2

`python -m package.module` imports from the current directory first: a `json.py` there would replace
the one of the standard library. Here the current directory comes last. This file imports nothing of
tfdist, because the script that it runs may not be a script of tfdist.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import signal
import sys
import types
from collections.abc import Sequence

#: The arguments of Python before the name of a module.
MODULE = ("-P", os.path.abspath(__file__))

_fdopen = ctypes.CDLL(None).fdopen
_fdopen.restype = ctypes.c_void_p


def execute(arguments: Sequence[str], search_path: Sequence[str]) -> None:
    """Runs `python ARGUMENTS` in this process, and ends it; does not return.

    Args:
      arguments: the path of a script, or `MODULE` and the name of a module; then its arguments.
      search_path: where modules are searched, without the directory of the script.
    """
    path = _create_main(list(arguments), search_path)
    atexit.register(_end_if_interrupted)
    # These functions are Python's own main program. `runpy` removes `__main__` too early: before
    # threads end, exit functions run and files are closed.
    file = ctypes.c_void_p(_fdopen(os.open(path, os.O_RDONLY), b"r"))
    failed = ctypes.pythonapi.PyRun_SimpleFileExFlags(file, os.fsencode(path), True, None)
    ctypes.pythonapi.Py_Exit(-failed)


def _create_main(arguments: list[str], search_path: Sequence[str]) -> str:
    """Creates the `__main__` of `python ARGUMENTS`; returns the path of its source.

    No variable of `execute` may hold the module: otherwise Python frees the objects of TensorFlow
    before those of the script, and prints exceptions.
    """
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    # Not sys.flags.safe_path, which is set for the fork server and with `MODULE`.
    is_safe_path = bool(os.environ.get("PYTHONSAFEPATH"))
    sys.path[:] = search_path
    if tuple(arguments[: len(MODULE)]) == MODULE:
        name, *arguments = arguments[len(MODULE) :]
        if not is_safe_path:
            sys.path.append(os.getcwd())
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError as error:
            sys.exit(f"{sys.executable}: {error}")
        if spec and spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{spec.name}.__main__")
        if not spec or not spec.origin:
            sys.exit(f"{sys.executable}: No module named {name}")
        main.__spec__, main.__package__ = spec, spec.parent
        arguments = [spec.origin, *arguments]
    elif not is_safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(arguments[0])))
    sys.argv[:] = arguments
    main.__file__ = os.path.join(os.getcwd(), arguments[0])
    return main.__file__


def _end_if_interrupted() -> None:
    if issubclass(getattr(sys, "last_type", Exception), KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    execute([*MODULE, *sys.argv[1:]], sys.path.copy())
