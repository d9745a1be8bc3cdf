"""The Python stacks of this process, and of another process of the same user.

    answer_signal()            # in a task: SIGUSR2 writes its stacks into a file in memory
    text = stacks()            # of all threads of this process
    place = own_code()         # 'train.py:40 in slow': this process is in code of the user
    text = stacks_of(4711)     # of a process that has called `answer_signal`

Python's `faulthandler` needs no interpreter to write them, so a task answers even if a call holds
Python's global interpreter lock. Its file in memory belongs to the process, and ends with it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import re
import signal
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

#: The signal that makes a task write its stacks.
SIGNAL = signal.SIGUSR2

_NAME = "tfdist-stacks"
_ANSWER_SECONDS = 5.0
# The file has its final size if it has not grown for so long.
_SETTLED_SECONDS = 0.1

_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
# No code of the user; what is compiled from text has a name such as `<string>`.
_STANDARD_LIBRARY = (f"{sysconfig.get_path('stdlib')}/", "<")
_TFDIST = f"{Path(__file__).parents[1]}/"
_LIBRARIES = ("keras", "tensorflow", "tensorflow_estimator", "tf_keras", "tfdist")
# A function of the user that a TensorFlow operation calls, such as tf.py_function.
_SCRIPT_OPS = "/script_ops.py"
# The files of Python's debugger.
_DEBUGGERS = ("pdb.py", "bdb.py")


def answer_signal() -> None:
    """Makes `SIGNAL` write the stacks of this process for `stacks_of`.

    Does nothing if the program handles the signal itself.
    """
    if signal.getsignal(SIGNAL) is not signal.SIG_DFL:
        return
    faulthandler.register(SIGNAL, new_memory_file(_NAME), all_threads=True)


def stacks_of(pid: int) -> str:
    """The stacks of another process, the innermost call first.

    Raises:
      PermissionError: the process belongs to another user.
      LookupError: there is no such process, or it has not called `answer_signal`.
      TimeoutError: the process does not answer, because it is stopped, for example.
    """
    path = memory_file(pid, _NAME)
    if path is None:
        raise LookupError(f"process {pid} is no task of tfdist")
    with open(path, "rb") as file:
        begin = file.seek(0, os.SEEK_END)
        os.kill(pid, SIGNAL)
        deadline = time.monotonic() + _ANSWER_SECONDS
        size, before = begin, -1
        while (size == begin or size > before) and time.monotonic() < deadline:
            time.sleep(_SETTLED_SECONDS)
            size, before = file.seek(0, os.SEEK_END), size
        if size == begin:
            raise TimeoutError(f"process {pid} has not answered for {_ANSWER_SECONDS:g} s")
        file.seek(begin)
        return file.read().decode(errors="replace")


def new_memory_file(name: str) -> int:
    """The descriptor of a new file in memory, which `memory_file` finds in another process.

    Where the kernel refuses such files, it is a temporary file, which is not found.
    """
    try:
        return os.memfd_create(name)
    except OSError:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def memory_file(pid: int, name: str) -> Path | None:
    """The path of a file in memory that a process has open; None if it has none of this name.

    Raises:
      PermissionError: the process belongs to another user.
    """
    with suppress(FileNotFoundError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if os.readlink(path).startswith(f"/memfd:{name} "):
                    return path
    return None


def stacks() -> str:
    """The stacks of this process's threads, the innermost call last, with lines of source."""
    parts = []
    for name, frame in _frames():
        lines = traceback.format_stack(frame)
        parts.append(f"Thread {name}:\n{''.join(lines)}")
    return "\n".join(parts)


def own_code() -> str:
    """The innermost call in code of the user, with its file and line; empty if there is none.

    Looks at the main thread and at functions that TensorFlow calls. A call of a library that has
    not returned is no code of the user, except for one of Python's standard library, such as
    `time.sleep`.
    """
    for name, frame in _frames():
        is_called = any(each.f_code.co_filename.endswith(_SCRIPT_OPS) for each in _outwards(frame))
        if name != threading.main_thread().name and not is_called:
            continue
        for each in _outwards(frame):
            path = each.f_code.co_filename
            if _PACKAGES.search(path) or path.startswith(_TFDIST):
                break
            if not path.startswith(_STANDARD_LIBRARY):
                return f"{os.path.basename(path)}:{each.f_lineno} in {each.f_code.co_name}"
    return ""


def is_debugged() -> bool:
    """Whether a debugger has stopped a thread of this process, or is attached to it."""
    if "pydevd" in sys.modules:
        return True
    return any(
        os.path.basename(each.f_code.co_filename) in _DEBUGGERS
        for _, frame in _frames()
        for each in _outwards(frame)
    )


def runs(thread: int, functions: Sequence[str]) -> bool:
    """Whether a thread is in a function of Keras, TensorFlow or tfdist with one of these names; a
    script may have a `train` of its own."""
    return any(
        each.f_code.co_name in functions
        and each.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES
        for each in _outwards(_current_frames().get(thread))
    )


def _frames() -> list[tuple[str, FrameType]]:
    """The innermost frame of each thread but this one, the main thread first."""
    names: Mapping[int | None, str] = {each.ident: each.name for each in threading.enumerate()}
    frames = _current_frames()
    main = threading.main_thread().ident
    order = sorted(frames, key=lambda ident: (ident != main, ident))
    return [
        (names.get(ident, f"{ident:#x}"), frames[ident])
        for ident in order
        if ident != threading.get_ident()
    ]


def _current_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, without garbage collection meanwhile.

    Python 3.11 holds a lock meanwhile, which the end of a `threading.local` takes. If the garbage
    has one, as that of TensorFlow's graphs has, the process would wait for itself
    (https://github.com/python/cpython/issues/106883).
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if is_enabled:
            gc.enable()


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def keep_forever(frame: FrameType | None) -> None:
    """Keeps the variables of a call and of its callers, such as Keras's `fit`, from being freed.

    When Python leaves `fit`, it would free the iterator over the data. That waits for the threads
    of the iterator (`MultiDeviceBuffer::Reset` in TensorFlow's `multi_device_iterator_ops.cc`),
    and one that runs a function of Python waits for Python's lock, which the freeing thread holds.
    One of ten jobs with `tf.numpy_function` in their data hung there.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(frame))
