"""Starts tasks as copies of one process that has imported TensorFlow.

    server = ForkServer(["tensorflow"], os.environ)
    select.select([server], [], [])                 # until the modules are imported
    server.read_ready()
    task = server.start(["python", "train.py"], environ, output)
    task.wait()

This is the fork server of `multiprocessing`. It imports TensorFlow once for all tasks of a machine
and never uses it: each task has its own runtime, devices and random numbers.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib.util
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from tfdist.launch.starting import Started, die_with, spawn

# The launcher's number and the modules to import. Only the fork server has this variable.
_VARIABLE = "TFDIST_FORK_SERVER"
# The fork server's search path: in a task, `multiprocessing` sets `sys.path` to the launcher's.
_search_path = sys.path
_fdopen = ctypes.CDLL(None).fdopen
_fdopen.restype = ctypes.c_void_p


class ForkServer:
    """Starts tasks as copies of the fork server, or as new processes if it is lost.

    A process has one fork server, which ends with the process: a second object uses the same one.

    Args:
      modules: what the fork server imports. A task tries again what cannot be imported.
      environ: variables of the fork server, in addition to the launcher's.
    """

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str]) -> None:
        self.is_ready = self._is_lost = False
        variable = ",".join([str(os.getpid()), *modules])
        self._environ = {**environ, "PYTHONUNBUFFERED": "1", _VARIABLE: variable}
        forkserver.set_forkserver_preload([__name__])
        with _seen_by_server(self._environ):
            # The first process gets no work. It starts when the modules are imported.
            self._status, work = forkserver.connect_to_new_process([])
        os.close(work)

    def fileno(self) -> int:
        """A file descriptor that can be read when the fork server is ready or lost."""
        return self._status

    def read_ready(self) -> None:
        """Waits until the fork server is ready or lost."""
        self._is_lost = not os.read(self._status, 1)
        self.is_ready = True
        os.close(self._status)

    def start(self, command: Sequence[str], environ: Mapping[str, str], output: int) -> Started:
        """As `Start`, for a Python script, or `-m` and a module, and for this interpreter."""
        if not self._is_lost:
            # A fork server that has ended is started again here.
            seen = _seen_by_server(self._environ)
            with suppress(OSError, EOFError), Connection(os.dup(output), readable=False) as w, seen:
                arguments = (list(command[1:]), dict(environ), w)
                task = _Task(target=_run_task, name="MainProcess", args=arguments)
                task.start()
                return task
            self._is_lost = True
        return spawn(command, environ, output)


class _Task(ForkServerProcess):
    pid: int  # Never None, because `ForkServer.start` returns only started tasks.

    def has_ended(self) -> bool:
        return self.exitcode is not None

    def wait(self) -> int:
        self.join()
        return self.exitcode or 0


@contextmanager
def _seen_by_server(environ: Mapping[str, str]) -> Iterator[None]:
    """Sets the environment, and hides the launcher's `__main__`, which tasks would import."""
    main, before = sys.modules["__main__"], dict(os.environ)
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.modules["__main__"] = main


def _prepare_server() -> None:
    """Imports the modules, without output, if this process is the fork server."""
    launcher, *modules = os.environ.pop(_VARIABLE, "").split(",")
    if launcher != str(os.getppid()):
        return
    die_with(int(launcher))
    # A signal to the launcher's group must not end the fork server.
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if "" in sys.path:
        sys.path.remove("")
    for module in modules:
        with suppress(Exception):
            importlib.import_module(module)
    # Python does not look at frozen objects when a task ends: this saves a second.
    gc.collect()
    gc.freeze()


def _run_task(arguments: list[str], environ: dict[str, str], output: Connection) -> None:
    """Runs `python ARGUMENTS` in this process, and ends it; does not return."""
    os.setsid()
    die_with(os.getppid())
    launcher = multiprocessing.parent_process()
    if launcher is None or not launcher.is_alive():
        os._exit(1)
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    output.close()
    os.environ.clear()
    os.environ.update(environ)
    multiprocessing.set_start_method(None, force=True)
    # The generator of `random` differs in each copy. The generator of NumPy does not.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    path = _create_main(arguments)
    atexit.register(_end_if_interrupted)
    # These functions are Python's own main program. `runpy` removes `__main__` too early: before
    # threads end, exit functions run and files are closed. `multiprocessing` skips exit functions.
    file = ctypes.c_void_p(_fdopen(os.open(path, os.O_RDONLY), b"r"))
    failed = ctypes.pythonapi.PyRun_SimpleFileExFlags(file, os.fsencode(path), True, None)
    ctypes.pythonapi.Py_Exit(-failed)


def _create_main(arguments: list[str]) -> str:
    """Creates the `__main__` of `python ARGUMENTS`; returns the path of its source.

    No variable of `_run_task` may hold the module: Python then frees the objects of TensorFlow
    before those of the script, and prints exceptions.
    """
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    is_module = arguments[0] == "-m"
    directory = os.getcwd() if is_module else os.path.dirname(os.path.realpath(arguments[0]))
    sys.path[:] = _search_path if sys.flags.safe_path else [directory, *_search_path]
    if is_module:
        spec = importlib.util.find_spec(arguments[1])
        if spec and spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{spec.name}.__main__")
        if not spec or not spec.origin:
            sys.exit(f"{sys.executable}: No module named {arguments[1]}")
        main.__spec__, main.__package__ = spec, spec.parent
        arguments = [spec.origin, *arguments[2:]]
    sys.argv[:] = arguments
    main.__file__ = os.path.join(os.getcwd(), arguments[0])
    return main.__file__


def _end_if_interrupted() -> None:
    if issubclass(getattr(sys, "last_type", Exception), KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


_prepare_server()
