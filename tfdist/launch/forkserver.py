"""Starts tasks as copies of one process that has TensorFlow imported already.

    server = ForkServer(["tensorflow"], os.environ)
    server.read_ready()                                # when its socket has something to say
    task = server.start(["python", "train.py"], environ, output)
    task.wait()

Importing TensorFlow takes seconds of a core and hundreds of megabytes, for each task of a machine
and again after each restart; here all of them share one import. The process that is copied has not
begun to use TensorFlow, and has no threads but those of NumPy's library, which ends them before it
is copied: each task has a runtime, devices and random numbers of its own. As the start method
`forkserver` of `multiprocessing`, with its preload.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any, NoReturn

#: What `ps -o comm` and `top` call the process that is copied.
NAME = "tfdist-preload"

_LENGTH = struct.Struct("!I")
_READY = b"r"
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
# Looked up here and not in a forked child, where little is safe.
_libc = ctypes.CDLL(None)
_prctl = _libc.prctl
_ADOPTION_SECONDS = 10.0
_FLUSH_SECONDS = 10.0


class ForkServerLostError(RuntimeError):
    """The process to copy has ended."""


class Forked:
    """A task that a `ForkServer` has started, a child of this process.

    Attributes:
      pid: its number.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        """Waits for its end; the exit code, or minus the number of the signal that ended it."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class ForkServer:
    """The process to copy; it ends with this one.

    Args:
      modules: what it imports. What it cannot import the tasks will try for themselves.
      environ: its environment; what TensorFlow reads at its import must be in it.
    """

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str]) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())]
            self._popen = subprocess.Popen(
                # The launcher's arguments are there for whoever looks for the script with `ps`.
                [*command, ",".join(modules), *sys.argv[1:]],
                env={**environ, "PYTHONUNBUFFERED": "1"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # TensorFlow's remarks at its import; a task that cannot import it says so itself.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )

    def read_ready(self) -> None:
        """Reads that it is ready; waits for that, unless its socket can be read.

        Raises:
          ForkServerLostError: it has ended.
        """
        self._read(len(_READY))

    def start(self, command: Sequence[str], environ: Mapping[str, str], output: int) -> Forked:
        """Starts a task; to be called once it is ready.

        Args:
          command: as for `subprocess`, of a Python script or of `-m` and a module; the interpreter
            is this one.
          environ: the task's environment.
          output: the file descriptor that its stdout and stderr go to.

        Raises:
          ForkServerLostError: it has ended.
        """
        request = json.dumps({"arguments": list(command[1:]), "environ": dict(environ)}).encode()
        # Its parent ends at once, and leaves it to whoever is this.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self.socket, [_LENGTH.pack(len(request))], [output])
            self.socket.sendall(request)
            return Forked(_LENGTH.unpack(self._read(_LENGTH.size))[0])
        except OSError as error:
            raise ForkServerLostError(str(error)) from error
        finally:
            # What tasks leave behind is none of this process's.
            _prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        """Ends it; its tasks stay."""
        self.socket.close()
        self._popen.kill()
        self._popen.wait()

    def _read(self, size: int) -> bytes:
        try:
            data = self.socket.recv(size, socket.MSG_WAITALL)
        except OSError as error:
            raise ForkServerLostError(str(error)) from error
        if len(data) < size:
            raise ForkServerLostError("its socket is closed")
        return data


def die_with(parent: int) -> None:
    """The kernel kills this process when its parent is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _serve(launcher: int, requests: socket.socket) -> tuple[list[str], dict[str, str], int]:
    """Answers requests; returns one of them, with its output, in the task that it asks for."""
    requests.sendall(_READY)
    while True:
        header, outputs, _, _ = socket.recv_fds(requests, _LENGTH.size, 1)
        if len(header) < _LENGTH.size:
            sys.exit()
        (size,) = _LENGTH.unpack(header)
        request = json.loads(requests.recv(size, socket.MSG_WAITALL))
        # Its parent ends at once, so that the launcher adopts it.
        reader, writer = os.pipe()
        parent = os.fork()
        if parent == 0:
            try:
                is_parent = os.fork() != 0
            except OSError:
                is_parent = True
            if is_parent:
                os._exit(0)
            # A group of its own before anybody hears of it, and may want to end the group.
            os.setsid()
            os.write(writer, _LENGTH.pack(os.getpid()))
            os.close(reader)
            os.close(writer)
            requests.close()
            _await_adoption(launcher)
            return request["arguments"], request["environ"], outputs[0]
        os.close(writer)
        os.waitpid(parent, 0)
        # Nothing where there could not be another process: the launcher sees the end of this one.
        pid = os.read(reader, _LENGTH.size)
        if not pid:
            sys.exit()
        for descriptor in (reader, *outputs):
            os.close(descriptor)
        requests.sendall(pid)


def _name_process(name: str) -> None:
    _prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def _await_adoption(launcher: int) -> None:
    until = time.monotonic() + _ADOPTION_SECONDS
    while os.getppid() != launcher and time.monotonic() < until:
        time.sleep(0.001)
    die_with(launcher)


def _become(environ: Mapping[str, str], output: int) -> None:
    """Makes this process what a new one with that environment and output would be."""
    _name_process(os.path.basename(sys.executable))
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(environ)
    # Python's own random numbers differ in each copy; NumPy's would not.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _run(arguments: Sequence[str]) -> None:
    """Runs a script or a module as Python's command line does."""
    if arguments[0] == "-m":
        _search_first(os.getcwd())
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    path = os.path.join(os.getcwd(), arguments[0])
    _search_first(os.path.dirname(os.path.realpath(path)))
    sys.argv = list(arguments)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __spec__=None)
    sys.modules["__main__"] = main
    with open(path, "rb") as script:
        code = compile(script.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _search_first(directory: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, directory)


def _show(error: BaseException) -> int:
    """As Python does with what a script does not catch; without the frames of this module.

    Returns:
      The exit code.
    """
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def _end(code: int, shared: Set[str]) -> NoReturn:
    """Ends the process as Python does, but for the modules that are shared with other tasks.

    To take down those of TensorFlow takes a second. What is the script's own goes as usual, so that
    its files are written to their ends.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    # In a thread, because another one may hold a file that cannot be written for ever.
    summaries = sys.modules.get("tensorflow.python.ops.summary_ops_v2")
    writer = summaries._summary_state.writer if summaries else None
    flushing = threading.Thread(target=_flush_files, args=[writer], daemon=True)
    flushing.start()
    flushing.join(_FLUSH_SECONDS)
    script = vars(sys.modules["__main__"])
    for name in [name for name in sys.modules if name == "__main__" or name not in shared]:
        del sys.modules[name]
    gc.collect()
    # What TensorFlow or this package remembers of the script keeps the rest of it.
    if script is not globals():  # They are where a module was run, which has gone already.
        script.clear()
        gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    # TensorFlow writes its files through the C library.
    _libc.fflush(None)
    os._exit(code & 0xFF)


def _flush_files(summary_writer: Any) -> None:
    """Writes what is held of files that are still open, and of TensorFlow's default summaries.

    The collector may close the bottom of a file before its top has handed down what it holds.
    """
    for found in gc.get_objects():
        if issubclass(type(found), io.IOBase):
            with contextlib.suppress(Exception):
                found.flush()
    if summary_writer is not None:
        with contextlib.suppress(Exception):
            summary_writer.flush()


def _main() -> None:
    descriptor, launcher, modules = sys.argv[1:4]
    _name_process(NAME)
    if not sys.flags.safe_path:
        # The launcher's directory, which `-m` adds, is not where a script's modules are looked for.
        del sys.path[0]
    for module in filter(None, modules.split(",")):
        try:
            importlib.import_module(module)
        except Exception:
            continue
    # So that looking for garbage does not make copies of what all tasks share.
    gc.collect()
    gc.freeze()
    shared = frozenset(sys.modules)
    arguments, environ, output = _serve(int(launcher), socket.socket(fileno=int(descriptor)))
    _become(environ, output)
    code = 0
    try:
        _run(arguments)
    except BaseException as error:
        code = _show(error)
    _end(code, shared)


if __name__ == "__main__":
    _main()
