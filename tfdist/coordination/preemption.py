"""SIGTERM, and SIGUSR1 as Slurm sends it: every task saves at one common step and leaves.

    preemption = Preemption()            # once a process; the signals are heard from now on
    with preemption.watched("worker:1", ("worker:0", "worker:1"), board):
        while preemption.begin_step():   # False: save, and leave with EXIT_PREEMPTED
            train_step()

A signal may reach one task or all. Whoever has one says so on the board; then every task posts the
number of steps that it has begun, and all train on to the greatest of these numbers: a synchronous
step that one task has begun needs all others. No request is made to any metadata server.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

#: The exit code of a task that has saved and left: EX_TEMPFAIL of sysexits.h, "try again later".
EXIT_PREEMPTED = 75

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

_AGREEMENT_SECONDS = 60.0
_POLL_SECONDS = 0.5
_ECHO_SECONDS = 1.0


class Board(Protocol):
    """Where the tasks of a job leave each other short messages, each under a key of its own."""

    def post(self, key: str, value: str) -> None:
        """Writes `value`; a key is written once, or again with the same value."""

    def read(self, key: str, seconds: float) -> str | None:
        """The value, waited for as long as that; None if it has not come."""


class Preemption:
    """This process's part in leaving together.

    Attributes:
      is_requested: whether a signal has reached this process.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._requested_at = 0.0
        self._has_nothing_to_save = False
        self._is_watched = False
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        # True for a signal, False for the end; its `put` may be called in a handler of signals.
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._round = 0
        self._begun = 0
        self._is_frozen = False
        self._last_step: int | None = None
        self._error: BaseException | None = None

    def listen(self, *, has_nothing_to_save: bool = False) -> None:
        """Hears the signals from now on.

        To be called after the strategy has been built: TensorFlow's own handler of SIGTERM, which
        does nothing, would take the place of an earlier one. Until `watched`, or `serving`, a
        signal ends the process as it does by default.

        Args:
          has_nothing_to_save: the process may leave at any time, with EXIT_PREEMPTED.
        """
        self._has_nothing_to_save = has_nothing_to_save
        for number in SIGNALS:
            signal.signal(number, self._on_signal)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While the block runs a signal is only remembered: others need this task to save."""
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False

    @contextmanager
    def watched(
        self, task: str, tasks: Sequence[str], board: Board | None = None
    ) -> Iterator[None]:
        """While the block runs, `begin_step` and `should_stop` say when to leave.

        Args:
          task: the name of this task.
          tasks: the names of all that train together.
          board: what they share; None where this task trains alone.
        """
        self._end_watching()
        self._begun, self._is_frozen, self._last_step, self._error = 0, False, None, None
        # What an earlier training has left on the board does not concern this one.
        self._round += 1
        self._ended.clear()
        self._requests = queue.SimpleQueue()
        if self.is_requested:
            self._requests.put(True)
        self._is_watched = True
        self._watcher = threading.Thread(
            target=self._watch, args=(task, tasks, board), name="preemption", daemon=True
        )
        self._watcher.start()
        # Python ends a daemon thread that is within TensorFlow by aborting the process. Until then
        # nothing waits for it: it may have half a second to go.
        atexit.unregister(self._end_watching)
        atexit.register(self._end_watching)
        try:
            yield
        finally:
            self._tell_watcher_to_end()

    def _tell_watcher_to_end(self) -> None:
        self._is_watched = False
        self._ended.set()
        self._requests.put(False)

    def _end_watching(self) -> None:
        if self._watcher is not None:
            self._tell_watcher_to_end()
            self._watcher.join(2 * _POLL_SECONDS)

    def begin_step(self) -> bool:
        """Counts a step that is about to begin; False when it must not begin.

        Raises:
          RuntimeError: the tasks were to leave together, and could not agree on a step.
        """
        with self._changed:
            if self._leaves():
                return False
            self._begun += 1
            return True

    def should_stop(self) -> bool:
        """Between two steps: whether this is the common step after which all leave.

        Raises:
          RuntimeError: as `begin_step`.
        """
        with self._changed:
            return self._leaves()

    @property
    def is_preempted(self) -> bool:
        """Whether a signal has reached any of the tasks."""
        return self._is_frozen

    def _leaves(self) -> bool:
        while self._is_frozen and self._last_step is None and self._error is None:
            self._changed.wait()
        if self._error is not None:
            raise RuntimeError(
                "This task was told to end, and could not agree with the others on a step to save "
                f"at: {self._error}"
            )
        return self._last_step is not None and self._begun >= self._last_step

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if not self._is_watched:
            os._exit(EXIT_PREEMPTED if self._has_nothing_to_save else 128 + number)
        now = time.monotonic()
        if self.is_requested:
            # Who signals a launcher and all that it has started is heard twice.
            if now - self._requested_at > _ECHO_SECONDS:
                os._exit(128 + number)
            return
        self.is_requested, self._requested_at = True, now
        name = signal.Signals(number).name
        # Not by `print`, which the signal may have interrupted.
        os.write(
            sys.stderr.fileno(),
            f"tfdist: {name}: saving and leaving; a second signal ends this at once\n".encode(),
        )
        self._requests.put(True)

    def _watch(self, task: str, tasks: Sequence[str], board: Board | None) -> None:
        try:
            if self._is_called(board):
                self._agree(task, tasks, board)
        except Exception as error:  # whatever the board's engine raises when a peer is lost
            if not self._ended.is_set():
                with self._changed:
                    self._error = error
                    self._changed.notify_all()

    def _is_called(self, board: Board | None) -> bool:
        """Waits until a signal has reached any task; False when training has ended before."""
        if board is None:
            return self._requests.get()
        while True:
            with contextlib.suppress(queue.Empty):
                return self._requests.get_nowait()
            try:
                if board.read(self._key("called"), _POLL_SECONDS) is not None:
                    return True
            except Exception:  # whatever its engine raises; which will say so where it matters
                self._ended.wait(_POLL_SECONDS)

    def _key(self, name: str) -> str:
        return f"tfdist_preempted_{self._round}.{name}"

    def _agree(self, task: str, tasks: Sequence[str], board: Board | None) -> None:
        if board is not None:
            board.post(self._key("called"), "1")
        with self._changed:
            self._is_frozen = True
            begun = self._begun
        last_step = begun
        if board is not None:
            board.post(self._key(task), str(begun))
            deadline = time.monotonic() + _AGREEMENT_SECONDS
            for other in tasks:
                answer = self._await_key(board, self._key(other), deadline)
                if answer is None:
                    raise TimeoutError(f"{other} has not answered in {_AGREEMENT_SECONDS:g} s")
                last_step = max(last_step, int(answer))
            board.post(self._key(f"{task}.knows"), "1")
            if task == tasks[0]:
                # The board may end with this task, which is not to leave before all have read it.
                for other in tasks:
                    self._await_key(board, self._key(f"{other}.knows"), deadline)
        with self._changed:
            self._last_step = last_step
            self._changed.notify_all()

    def _await_key(self, board: Board, key: str, deadline: float) -> str | None:
        """What is posted; None where the deadline, or the end of the training, comes first."""
        answer = None
        # In slices, so that this thread ends with the training.
        while answer is None and time.monotonic() < deadline and not self._ended.is_set():
            answer = board.read(key, _POLL_SECONDS)
        return answer
