"""Checks before each common call, such as `fit`, that all training tasks make the same one.

    agreement = Agreement("worker:1", ("worker:0", "worker:1"), store)
    agreement.check("fit", lambda: {"epochs": "5"})    # raises DisagreementError
    agreement.inside = "fit"                           # from now on, the others need this task
    ...
    agreement.inside = ""

A task with another model, with fewer epochs, or without the call at all would let the others wait
in a collective operation, or train something else. So the chief declares each common call in the
store that the tasks share, and every other task compares its own declaration with that. A task
that finds a difference, or that exits, leaves a note in the store. Each task looks for the note
once a second, because it may already be in a collective operation.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Any

from tfdist.coordination.stores.kv_store import KeyValueStore
from tfdist.errors import DisagreementError, log
from tfdist.process import excepthook, thread_stacks

#: The remedy if a task does not find what another one has written.
SHARE_DIRECTORY = (
    "Pass the same output directory in every task, on a file system that their machines share."
)
_REMEDY = "Start the same script with the same flags in every task."
_KEY, _NOTE = "tfdist_agreed.", "tfdist_agreed.note"
_POLL_SECONDS = 1.0
# Until the log says for what this task waits.
_NOTICE_SECONDS = 30.0
# Functions in which a task needs the others.
_COMMON = ("check", "distribute", "fit", "train", "train_and_evaluate")


class Agreement:
    """Compares the common calls of this task with those of the chief.

    Args:
      task: the name of this task.
      tasks: the names of all tasks that train together, the chief first.
      store: the key-value store that they share; None if this task trains alone.

    Attributes:
      inside: the call in which this task is, if the others cannot finish theirs without it.
    """

    def __init__(self, task: str, tasks: Sequence[str], store: KeyValueStore | None) -> None:
        self.inside = ""
        self._task, self._chief = (
            f"worker:{name}" if name.isdigit() else name for name in (task, tasks[0])
        )
        self._calls, self._last = 0, "its startup"
        self._thread = threading.get_ident()
        # The number of calls after which a task has left the others, and why.
        self._note: tuple[int, str] | None = None
        self._ends = threading.Event()
        self._store = store
        if store is not None:
            excepthook.hooks.explain_loss = self._explain_loss
            self._watcher = threading.Thread(target=self._watch, name="agreement", daemon=True)
            self._watcher.start()
            atexit.register(self.leave)
            # The end of a copy of this process is not the end of the task.
            os.register_at_fork(after_in_child=self._ends.set)

    def check(
        self, call: str, declare: Callable[[], Mapping[str, str]], *, remedy: str = _REMEDY
    ) -> None:
        """Checks that the chief makes the same call. Every training task must call it.

        Args:
          call: what the tasks are about to do together, such as `fit`.
          declare: returns what must be equal, by name, in the same order in every task. Called
            when the chief has declared it.
          remedy: what the user should do about a difference, as an imperative sentence.

        Raises:
          DisagreementError: the chief does something else, or declares another value.
        """
        self._calls, self._last, self._thread = self._calls + 1, call, threading.get_ident()
        if self._store is None:
            return
        key = f"{_KEY}{self._calls}"
        if self._task == self._chief:
            self._store.put(key, json.dumps([*{call: "", **declare()}.items()]))
            return
        found = None
        # Each store raises errors of its own. The next operation tells which task was lost.
        with suppress(Exception):
            while (found := self._store.get(key, _NOTICE_SECONDS)) is None:
                log(f"{self._task} waits for {self._chief} before {call}")
        if found is None:
            return
        (other_call, end), *theirs = json.loads(found)
        why = end or (
            f"{self._task} has reached {call} and {self._chief} {other_call}: every task must make "
            "the same calls in the same order."
        )
        if other_call == call:
            pairs = zip_longest(declare().items(), theirs, fillvalue=("", "none"))
            why = next(
                (
                    f"{name or other_name} is not the same in all tasks: {other} in {self._chief}, "
                    f"{own} in {self._task}. {remedy}"
                    for (name, own), (other_name, other) in pairs
                    if own != other
                ),
                "",
            )
        if why:
            self._ends.set()
            self._put(_NOTE, [0, why])
            raise DisagreementError(why)

    def _watch(self) -> None:
        while not self._ends.wait(_POLL_SECONDS):
            error = self._read_note()
            is_early = self._note is not None and self._calls > self._note[0]
            if error and is_early and thread_stacks.runs(self._thread, _COMMON):
                excepthook.end(error)

    def _read_note(self) -> DisagreementError | None:
        """Why a task has left the others, as far as it is known."""
        with suppress(Exception):
            if self._store and self._note is None and (text := self._store.get(_NOTE, 0.0)):
                calls, why = json.loads(text)
                self._note = calls, why
        return DisagreementError(self._note[1]) if self._note else None

    def _explain_loss(self) -> DisagreementError | None:
        self._ends.set()
        return self._read_note()

    def _put(self, key: str, value: Any) -> None:
        assert self._store is not None
        with suppress(Exception):  # There is a note already, or the store is lost.
            self._store.put(key, json.dumps(value))

    def leave(self) -> None:
        """Tells the others at exit that this task makes no more calls."""
        if not self._ends.is_set():
            self._ends.set()
            place = f"within {self.inside}" if self.inside else f"after {self._last}"
            why = (
                f"{self._task} ended early: its script ended {place}, and the others went on. "
                "Every task must make the same calls and stay to their end; the output of "
                f"{self._task} may say why it ended."
            )
            self._put(_NOTE, [self._calls - bool(self.inside), why])
            if self._task == self._chief:
                self._put(f"{_KEY}{self._calls + 1}", [["", why]])
                # The store may end with this task.
                time.sleep(1.5 * _POLL_SECONDS if self.inside else 0)
        # Python aborts a process that exits while a daemon thread is in TensorFlow.
        self._watcher.join(2 * _POLL_SECONDS)
