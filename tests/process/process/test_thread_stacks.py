"""The Python stacks of this process, and of another one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tests.support.processes import ROOT
from tfdist.process import thread_stacks

pytestmark = pytest.mark.stacks("newest")


@contextmanager
def process(path: Path, script: str) -> Iterator[subprocess.Popen[str]]:
    """A Python script that has printed a line; killed at the end."""
    file = path / "train.py"
    file.write_text(textwrap.dedent(script))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, file], stdout=subprocess.PIPE, env=environ, text=True
    ) as started:
        try:
            assert started.stdout is not None and started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(100)",
        # The C function keeps Python's global interpreter lock.
        "ctypes.PyDLL(None).sleep(100)",
        "lock.acquire()",
    ],
)
def test_a_process_shows_its_stacks_and_goes_on(tmp_path: Path, wait: str) -> None:
    script = f"""
    import ctypes, threading, time
    from tfdist.process import thread_stacks

    thread_stacks.answer_signal()
    lock = threading.Lock()
    lock.acquire()

    def slow():
        print("ready", flush=True)
        while True:
            {wait}

    slow()
    """
    with process(tmp_path, script) as task:
        for _ in range(2):
            text = thread_stacks.stacks_of(task.pid)
            assert text.count(" in slow\n") == 1 and "(most recent call first)" in text
        assert task.poll() is None


def test_a_stopped_process_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_stacks, "_ANSWER_SECONDS", 0.5)
    script = """
    import time
    from tfdist.process import thread_stacks
    thread_stacks.answer_signal()
    print("ready", flush=True)
    time.sleep(100)
    """
    with process(tmp_path, script) as task:
        task.send_signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError, match="has not answered"):
            thread_stacks.stacks_of(task.pid)


def test_a_program_that_handles_the_signal_keeps_its_handler(tmp_path: Path) -> None:
    script = """
    import os, signal, time
    from tfdist.process import thread_stacks
    # Not `print`: the signal may arrive within the one below.
    signal.signal(signal.SIGUSR2, lambda *_: os.write(1, b"handled\\n"))
    thread_stacks.answer_signal()
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
    """
    with process(tmp_path, script) as task:
        with pytest.raises(LookupError, match="is no task of tfdist"):
            thread_stacks.stacks_of(task.pid)
        task.send_signal(signal.SIGUSR2)
        assert task.stdout is not None and task.stdout.readline() == "handled\n"


def seen_in(work: threading.Event, until: threading.Event) -> list[str]:
    """What a thread finds when `work` is set."""
    found: list[str] = []

    def look() -> None:
        assert work.wait(60)
        found.append(thread_stacks.own_code())
        until.set()

    threading.Thread(target=look).start()
    return found


def test_code_of_the_user_is_found_in_the_main_thread() -> None:
    work, until = threading.Event(), threading.Event()
    found = seen_in(work, until)
    work.set()
    assert until.wait(60)
    (place,) = found
    assert place.startswith("test_thread_stacks.py:") and place.endswith(
        " in test_code_of_the_user_is_found_in_the_main_thread"
    )


def test_code_of_the_user_is_found_in_a_function_that_tensorflow_calls() -> None:
    work, until = threading.Event(), threading.Event()
    found = seen_in(work, until)

    def slow(x: tf.Tensor) -> tf.Tensor:
        work.set()
        assert until.wait(60)
        return x

    data = tf.data.Dataset.range(1).map(lambda x: tf.py_function(slow, [x], tf.int64))
    assert list(data.as_numpy_iterator()) == [0]
    (place,) = found
    assert place.endswith(" in slow")


def test_waiting_in_tensorflow_is_no_code_of_the_user(tmp_path: Path) -> None:
    """The main thread takes an element that never comes from a dataset."""
    script = """
    import threading, time
    import tensorflow as tf
    from tfdist.process import thread_stacks

    def look():
        # Until the main thread waits.
        while "get_next" not in (text := thread_stacks.stacks()) and "execute" not in text:
            time.sleep(0.1)
        time.sleep(1)
        print("ready", flush=True)
        print(repr(thread_stacks.own_code()), flush=True)

    queue = tf.queue.FIFOQueue(1, tf.int64, shapes=[[]])
    data = tf.data.Dataset.range(1).map(lambda _: queue.dequeue())
    threading.Thread(target=look).start()
    next(iter(data))
    """
    with process(tmp_path, script) as task:
        assert task.stdout is not None and task.stdout.readline() == "''\n"


def test_a_train_of_the_script_is_no_training() -> None:
    found = []

    class Asks(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs: object = None) -> None:
            found.append(thread_stacks.runs(threading.get_ident(), ("fit", "train")))

    def train() -> None:
        found.append(thread_stacks.runs(threading.get_ident(), ("fit", "train")))
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(tf.zeros([2, 3]), tf.zeros([2, 1]), callbacks=[Asks()], verbose=0)

    train()
    assert found == [False, True]


def test_no_garbage_is_collected_while_the_frames_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With Python 3.11 the process could wait for itself."""
    read, collected = sys._current_frames, []

    def seen() -> dict[int, Any]:
        collected.append(gc.isenabled())
        return read()

    monkeypatch.setattr(sys, "_current_frames", seen)
    assert not thread_stacks.runs(threading.get_ident(), ["train"])
    assert not thread_stacks.is_debugged()
    assert collected == [False, False]
    assert gc.isenabled()


def test_a_debugger_is_noticed() -> None:
    import pdb

    class Input:
        """Looks while the debugger waits for a command."""

        found: bool | None = None

        def readline(self) -> str:
            look = threading.Thread(target=self.look)
            look.start()
            look.join()
            return "continue\n"

        def look(self) -> None:
            self.found = thread_stacks.is_debugged()

    commands = Input()
    with open(os.devnull, "w") as output:
        pdb.Pdb(stdin=commands, stdout=output, nosigint=True).set_trace()  # type: ignore[arg-type]
        sys.settrace(None)
    assert commands.found is True
    assert thread_stacks.is_debugged() is False
