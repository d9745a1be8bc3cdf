"""Ends a training in all tasks after one common step: on a signal, or if one task asks for it.

    preemption = Preemption()            # once per process
    preemption.listen()                  # installs the signal handlers
    with preemption.watched("worker:1", ("worker:0", "worker:1"), store):
        while preemption.begin_step():   # False: save, and exit with EXIT_PREEMPTED
            train_step()
            if preemption.end_step(asks=model.stop_training):
                break                    # all tasks stop after this step

The signals are SIGTERM, SIGUSR1, SIGHUP and Ctrl-C. Schedulers send the first two before they
reclaim a machine; Slurm sends SIGUSR1 by choice. SIGHUP comes when the terminal is closed. A signal
may reach one task or all. A task that receives it, or that asks, sets a key in the shared key-value
store. Then every task stores the number of steps that it has begun, and all train up to the
greatest of these numbers, because a synchronous step that one task has begun needs all others.
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

from tfdist.coordination.stores.kv_store import KeyValueStore
from tfdist.errors import EXIT_PREEMPTED

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

_AGREEMENT_SECONDS = 60.0
_POLL_SECONDS = 0.5
_ECHO_SECONDS = 1.0


class Preemption:
    """The preemption state of this process.

    Attributes:
      is_requested: whether this process has received a signal.
      is_preempted: whether any of the tasks has received a signal, or has asked to stop.
      steps_begun: the steps that `begin_step` has counted. It may be read in any thread.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._requested_at = 0.0
        self._has_nothing_to_save = False
        self._is_watched = False
        self._changed = threading.Condition()
        self._watcher: threading.Thread | None = None
        self._round = 0
        self._begin_training()

    def _begin_training(self) -> None:
        """Forgets the training before."""
        # True to stop, False for the end of the training. A signal handler may call its `put`.
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ended = threading.Event()
        self.steps_begun = self._ended_steps = 0
        self.is_preempted = self._asks = False
        self._last_step: int | None = None
        # The tasks that asked to stop; none if the last step is that of a preemption.
        self._asking: list[str] = []
        self._error: BaseException | None = None

    def listen(self, *, has_nothing_to_save: bool = False) -> None:
        """Installs the signal handlers.

        Call this after the strategy is built, because TensorFlow then installs its own handler of
        SIGTERM, which does nothing. Outside of `watched` and `serving`, a signal ends the process
        as it does by default. An interactive Python keeps its own handling of Ctrl-C, and a process
        that nohup has started ignores SIGHUP.

        Args:
          has_nothing_to_save: the process may exit at any time, with EXIT_PREEMPTED.
        """
        self._has_nothing_to_save = has_nothing_to_save
        is_interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules
        for number in SIGNALS if is_interactive else (*SIGNALS, signal.SIGINT):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._on_signal)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """While the block runs, a signal only sets `is_requested`: the chief may have to save."""
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False

    @contextmanager
    def watched(
        self, task: str, tasks: Sequence[str], store: KeyValueStore | None = None
    ) -> Iterator[None]:
        """While the block runs, `begin_step` and `should_stop` say whether to stop.

        Args:
          task: the name of this task.
          tasks: the names of all tasks that train together.
          store: the key-value store that they share; None if this task trains alone.
        """
        self._stop_watching()
        self._begin_training()
        # Each training has its own keys: those of an earlier one are still in the store.
        self._round += 1
        if self.is_requested:
            self._requests.put(True)
        self._is_watched = True
        self._watcher = threading.Thread(
            target=self._watch, args=(task, tasks, store), name="preemption", daemon=True
        )
        self._watcher.start()
        # Python aborts a process that exits while a daemon thread is in TensorFlow. The thread is
        # joined at exit and not before, because it may take half a second to end.
        atexit.unregister(self._stop_watching)
        atexit.register(self._stop_watching)
        try:
            yield
        finally:
            self._request_stop()

    def _request_stop(self) -> None:
        self._is_watched = False
        self._ended.set()
        self._requests.put(False)

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._request_stop()
            self._watcher.join(2 * _POLL_SECONDS)

    def begin_step(self) -> bool:
        """Counts a step that is about to begin; returns False if training must stop before it.

        Raises:
          RuntimeError: the tasks could not agree on a last step.
        """
        with self._changed:
            if self._is_last_step_done() and not self._asking:
                return False
            self.steps_begun += 1
            return True

    def end_step(self, *, asks: bool) -> list[str]:
        """Ends a step; returns the tasks that asked to stop, if all tasks stop after this step.

        The tasks agree on this step, unless one of them has already returned from its `end_step`.

        Args:
          asks: whether this task asks to stop. It then waits for the agreement.

        Raises:
          RuntimeError: as `begin_step`.
        """
        with self._changed:
            if asks and not self._asks:
                self._asks = True
                self._requests.put(True)
            if self._is_last_step_done() and self._asking:
                return self._asking
            self._ended_steps = self.steps_begun
            return []

    def should_stop(self) -> bool:
        """Between two steps: whether the common last step of a preempted job is done.

        Raises:
          RuntimeError: as `begin_step`.
        """
        with self._changed:
            return self._is_last_step_done() and not self._asking

    def _is_last_step_done(self) -> bool:
        awaits = self.is_preempted or self._asks
        while awaits and self._last_step is None and self._error is None:
            self._changed.wait()
        if self._error is not None:
            raise RuntimeError(f"The tasks did not agree on a last step: {self._error}")
        return self._last_step is not None and self.steps_begun >= self._last_step

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._is_watched:
            if number == signal.SIGINT and not self._has_nothing_to_save:
                signal.default_int_handler(number, frame)
            os._exit(EXIT_PREEMPTED if self._has_nothing_to_save else 128 + number)
        now = time.monotonic()
        if self.is_requested:
            # A signal to a launcher and to its whole process group arrives twice.
            if now - self._requested_at > _ECHO_SECONDS:
                os._exit(128 + number)
            return
        self.is_requested, self._requested_at = True, now
        name = signal.Signals(number).name
        # Not with `print`, which the signal may have interrupted.
        os.write(
            sys.stderr.fileno(),
            f"tfdist: {name}: saving and exiting; a second signal exits immediately\n".encode(),
        )
        self._requests.put(True)

    def _watch(self, task: str, tasks: Sequence[str], store: KeyValueStore | None) -> None:
        try:
            if self._is_called(store):
                self._agree(task, tasks, store)
        except Exception as error:  # Each store raises errors of its own when a peer is lost.
            if not self._ended.is_set():
                with self._changed:
                    self._error = error
                    self._changed.notify_all()

    def _is_called(self, store: KeyValueStore | None) -> bool:
        """Waits until a task receives a signal or asks to stop; False if training ends first."""
        if store is None:
            return self._requests.get()
        while True:
            with contextlib.suppress(queue.Empty):
                return self._requests.get(timeout=_POLL_SECONDS)
            # Without a wait, in which Horovod's store is read many times. A store that fails for
            # good also fails a training step.
            with contextlib.suppress(Exception):
                if store.get(self._key("called"), 0.0) is not None:
                    return True

    def _key(self, name: str) -> str:
        return f"tfdist_preempted_{self._round}.{name}"

    def _agree(self, task: str, tasks: Sequence[str], store: KeyValueStore | None) -> None:
        if store is not None:
            store.put(self._key("called"), "1")
        with self._changed:
            self.is_preempted = True
            # The last step if the job is preempted, the last step if a task asks to stop, and
            # whether this one asks.
            begun = self.steps_begun
            answers = {task: (begun, max(begun, self._ended_steps + 1), self._asks)}
        if store is not None:
            store.put(self._key(task), "{} {} {:d}".format(*answers[task]))
            deadline = time.monotonic() + _AGREEMENT_SECONDS
            for other in tasks:
                answer = self._wait_for_key(store, self._key(other), deadline)
                if answer is None:
                    raise TimeoutError(f"{other} has not answered in {_AGREEMENT_SECONDS:g} s")
                begun, stoppable, asks = map(int, answer.split())
                answers[other] = begun, stoppable, bool(asks)
            store.put(self._key(f"{task}.knows"), "1")
            if task == tasks[0]:
                # The store may end with this task, which must not exit before all have read it.
                for other in tasks:
                    self._wait_for_key(store, self._key(f"{other}.knows"), deadline)
        with self._changed:
            self._asking = [name for name, (_, _, asks) in answers.items() if asks]
            self._last_step = max(answer[bool(self._asking)] for answer in answers.values())
            self._changed.notify_all()

    def _wait_for_key(self, store: KeyValueStore, key: str, deadline: float) -> str | None:
        """The value of a key; None after the deadline, or when training has ended."""
        value = None
        # In short waits, so that this thread ends with the training.
        while value is None and time.monotonic() < deadline and not self._ended.is_set():
            value = store.get(key, _POLL_SECONDS)
        return value
