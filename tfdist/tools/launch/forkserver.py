"""Starts tasks as copies of one process that has imported TensorFlow.

    server = ForkServer(["tensorflow"], os.environ)
    select.select([server], [], [])                 # until the modules are imported
    server.read_ready()
    task = server.start(["python", "train.py"], environ, output)
    task.wait()

This is the fork server of `multiprocessing`. It imports TensorFlow once for all tasks of a machine
and never uses it: each task has its own runtime, devices and random numbers. Measured on two cores,
the start and the end of a job of 4 tasks take 5.6 s with it and 10.2 s without it; with 2 tasks it
makes no difference (5.0 and 5.2 s).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import multiprocessing
import os
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from tfdist.process.cores import OPENMP_VARIABLE
from tfdist.tools.launch import run_script
from tfdist.tools.launch.spawn import Started, die_with, spawn
from tfdist.tools.launch.supervision import Supervision
from tfdist.tools.launch.task_plan import TaskSpec

# The launcher's number and the modules to import. Only the fork server has this variable.
_VARIABLE = "TFDIST_FORK_SERVER"
# Where the fork server searches modules. In the launcher: without the directory of its own script.
_search_path = sys.path.copy() if sys.flags.safe_path else sys.path[1:]
# What the modules of the fork server would call at exit: each task does. Functions and arguments.
_exit_functions: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]] = []


def fork_server_of(
    tasks: Sequence[TaskSpec], options: Supervision, environ: Mapping[str, str]
) -> ForkServer | None:
    """The fork server of a job; None if it would not help, or its socket cannot be created.

    Args:
      tasks: the tasks, as far as they are known.
      options: how they are supervised.
      environ: the environment of the launcher.
    """
    # A new process is faster for a task that starts once, and alone can run `python -m`.
    starts_once = len(tasks) == 1 and not options.max_restarts
    if not options.preload or starts_once or any(task.command[1] == "-m" for task in tasks):
        return None
    # NumPy's library reads it when it is imported, so that of the first task applies to all.
    number = next(filter(None, (task.environment.get(OPENMP_VARIABLE) for task in tasks)), None)
    threads = {OPENMP_VARIABLE: number} if number else {}
    # Its socket cannot be created in a temporary directory with a long path.
    with suppress(OSError):
        return ForkServer(options.preload, {**threads, **environ})
    return None


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
        # It starts with `python -c`, which otherwise imports from the current directory first.
        own = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", _VARIABLE: variable}
        self._environ = {**environ, **own}
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
        """As `Start`, for this interpreter and a command that `run_script.execute` can run."""
        if not self._is_lost:
            given = (list(command[1:]), dict(environ))
            # A fork server that has ended is started again here.
            seen = _seen_by_server(self._environ)
            with suppress(OSError, EOFError), Connection(os.dup(output), readable=False) as w, seen:
                task = _Task(target=_run_task, name="MainProcess", args=(*given, w))
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
    """Sets `environ`, and hides the launcher's script, whose path `multiprocessing` would send."""
    launcher, path, before = sys.modules["__main__"], sys.path.copy(), dict(os.environ)
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[:] = _search_path
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        sys.path[:] = path
        sys.modules["__main__"] = launcher


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
    register = atexit.register

    def record(function: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        # All tasks use the directory: Matplotlib creates one if there is no home.
        if function is shutil.rmtree:
            return register(function, *args, **kwargs)
        _exit_functions.append((function, args, kwargs))
        return function

    atexit.register = record  # type: ignore[assignment]
    for module in modules:
        with suppress(Exception):
            importlib.import_module(module)
    atexit.register = register
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
    # Python 3.11 inherits them from the fork server, or from a process that copied itself.
    atexit.unregister(shutil.rmtree)
    for function, _, _ in _exit_functions:
        atexit.unregister(function)
    for function, args, kwargs in _exit_functions:
        atexit.register(function, *args, **kwargs)
    # The generator of `random` differs in each copy. The generator of NumPy does not.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    run_script.execute(arguments, _search_path)


_prepare_server()
