"""Makes an uncaught exception end the process immediately, and reports it to the launcher.

    end_on_uncaught(os.environ.get(ERROR_FILE_VARIABLE))     # in a task
    read_uncaught(path)                                      # in its launcher

The first task that fails makes the others fail. Their exceptions only say that a peer is gone, so
the launcher finds the cause by the time of each exception.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from logging import LogRecord
from pathlib import Path
from textwrap import shorten
from types import TracebackType

from absl import logging

from tfdist.errors import (
    EXIT_FAILED,
    EXIT_USAGE,
    HangError,
    LostTaskError,
    OutputError,
    UsageError,
    log,
)
from tfdist.process import user_code
from tfdist.process.atomic_file import replacing
from tfdist.process.deadline import within
from tfdist.process.mistakes import remedy_for

# TensorFlow's message for a lost task without heartbeats,
_REPORTED = re.compile(r"Error reported from /job:(\w+)/(?:replica:0/)?task:(\d+)")
# and for a broken connection. Other errors of a remote task contain this text, too.
_REMOTE = re.compile(r"remote target /job:(\w+)/(?:replica:0/)?task:(\d+)")
_CONNECTION_ERRORS = (
    "AbortedError",
    "CancelledError",
    "DeadlineExceededError",
    "InternalError",
    "UnavailableError",
    "UnknownError",
)
# Horovod's and Gloo's messages for a rank that was lost during a collective operation.
_LOST_RANK = re.compile(r"Horovod has been shut down|/gloo/transport/\S+\] ")
# Escape sequences of a terminal, and what TensorFlow puts before a message several times.
_STYLES = re.compile(r"\033\[\d*m|(Collective ops is aborted by: )(?=\1)")
_LONGEST_REPORT = 200
_REPORT_SECONDS = 15.0
_FINISH_SECONDS = 60.0
_EXPLAIN_SECONDS = 3.0


@dataclass(frozen=True)
class Uncaught:
    """An uncaught exception.

    Attributes:
      error: its message in one line.
      time: its time in seconds since 1970.
      lost_task: the task that was lost, such as `chief:0`; None if none was, or if it is unknown.
    """

    error: str
    time: float
    lost_task: str | None = None


@dataclass
class Hooks:
    """What is called before an uncaught exception ends this process.

    Attributes:
      explain_loss: called when another task was lost; returns the error to report instead, or None.
        It has `_EXPLAIN_SECONDS`.
      report_loss: called when another task was lost, with a sentence that says what has happened.
        It has `_REPORT_SECONDS`.
      finish: waits for work that must not be lost. It has `_FINISH_SECONDS`.
    """

    explain_loss: Callable[[], BaseException | None] | None = None
    report_loss: Callable[[str], None] | None = None
    finish: Callable[[], None] | None = None


hooks = Hooks()


def end_on_uncaught(error_file: str | None) -> None:
    """Installs an exception hook that ends the process after printing the traceback.

    A UsageError (code 2), an OutputError, a LostTaskError and a HangError (code 1) print one line
    without a traceback. So does an exception that only reports the loss of another task, unless the
    flag `--verbosity` is at least 1: the cause is in the output of that task.

    Without this hook, the threads of TensorFlow and Horovod keep the process alive, and with it the
    whole job: a failed worker still answers its peers while Python waits for these threads.

    Args:
      error_file: the path of the file for the launcher; None if there is no launcher.
    """
    print_traceback = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        now = time.time()
        if hooks.explain_loss and is_loss(error):
            error = within(_EXPLAIN_SECONDS, hooks.explain_loss) or error
        write_uncaught(error_file, error, now)
        code = EXIT_FAILED
        if isinstance(error, (UsageError, OutputError, LostTaskError, HangError)):
            # The message contains the cause and the remedy.
            log(f"error: {error}")
            code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
        elif remedy := remedy_for(f"{kind.__name__}: {error}"):
            line = user_code.line_in(traceback.extract_tb(trace))
            log(f"error: {_message(error)}, in {line}. {remedy[:1].upper()}{remedy[1:]}")
            code = EXIT_USAGE
        elif (peer := lost_peer(error)) and logging.get_verbosity() < logging.DEBUG:
            log(f"error: {peer} was lost ({_report(error)}); --verbosity=1 prints the traceback")
        else:
            print_traceback(kind, error, trace)
            # Compares the name, because this module does not import TensorFlow.
            if kind.__name__ == "DataLossError":
                log("error: a file is damaged. To find it, run: tfdist data verify FILE...")
            elif peer:
                log(f"error: {peer} was lost")
        sys.stdout.flush()
        sys.stderr.flush()
        if hooks.report_loss and is_loss(error):
            within(_REPORT_SECONDS, partial(hooks.report_loss, _message(error)))
        if hooks.finish:
            within(_FINISH_SECONDS, hooks.finish)
        os._exit(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else code)

    sys.excepthook = end
    print_unraisable = sys.unraisablehook

    def leave_losses_out(unraisable: sys.UnraisableHookArgs) -> None:
        # Such as of an executor of TensorFlow whose worker is gone.
        if unraisable.exc_value is None or not is_loss(unraisable.exc_value):
            print_unraisable(unraisable)

    sys.unraisablehook = leave_losses_out


def is_no_loss(record: LogRecord) -> bool:
    """A filter for TensorFlow's logger: the loss of a task is reported by tfdist, in one line."""
    return not _REMOTE.search(record.getMessage())


def end(error: BaseException) -> None:
    """Ends the process as an uncaught `error` does; can be called in any thread."""
    sys.excepthook(type(error), error, error.__traceback__)
    os._exit(EXIT_FAILED)


def is_loss(error: BaseException) -> bool:
    """Whether an exception says that another task was lost."""
    return isinstance(error, LostTaskError) or lost_peer(error) is not None


def lost_peer(error: BaseException) -> str | None:
    """The lost task that an exception of TensorFlow or Horovod reports; None for other exceptions.

    Horovod does not know which rank was lost.
    """
    message = str(error)
    match = _REPORTED.search(message)
    if match is None and type(error).__name__ in _CONNECTION_ERRORS:
        match = _REMOTE.search(message)
    if match:
        return f"{match[1]}:{match[2]}"
    return "another rank" if _LOST_RANK.search(message) else None


def read_uncaught(error_file: Path) -> Uncaught | None:
    """Reads the exception that a task has reported; None if there is none."""
    try:
        return Uncaught(**json.loads(error_file.read_text()))
    except FileNotFoundError:
        return None


def write_uncaught(error_file: str | None, error: BaseException, seconds: float) -> None:
    """Reports an exception to `read_uncaught`.

    Args:
      error_file: the path of the file; None does nothing.
      error: the exception.
      seconds: the time of the exception, in seconds since 1970.
    """
    if not error_file:
        return
    uncaught = Uncaught(_message(error), seconds, _lost_task(error))
    # The launcher may have exited. The traceback is already printed.
    with suppress(OSError), replacing(Path(error_file)) as temporary:
        temporary.write_text(json.dumps(asdict(uncaught)))


def _message(error: BaseException) -> str:
    """The message of an exception in one line; of a lost task, only that it was lost."""
    peer = lost_peer(error)
    lines = [line.strip() for line in _STYLES.sub("", str(error)).splitlines() if line.strip()]
    # Keras 3 says in the first line where it is, and in the second what is wrong; AutoGraph says
    # this in the last one.
    first = lines[-1:] if lines[:1] == ["in user code:"] else lines[:2]
    cause = f"{peer} was lost" if peer else shorten(" ".join(first), _LONGEST_REPORT)
    return f"{type(error).__name__}: {cause}".removesuffix(": ")


def _report(error: BaseException) -> str:
    """The line of an exception's message that says why a connection was lost."""
    lines = [line.strip() for line in _STYLES.sub("", str(error)).splitlines() if line.strip()]
    for before, line in pairwise(["", *lines]):
        if _REPORTED.search(line) or _LOST_RANK.search(line):
            return shorten(line, _LONGEST_REPORT)
        if _REMOTE.search(line):
            return shorten(before, _LONGEST_REPORT)
    return type(error).__name__


def _lost_task(error: BaseException) -> str | None:
    """The name of the lost or hanging task that an exception reports."""
    if isinstance(error, (LostTaskError, HangError)):
        return error.task or None
    peer = lost_peer(error)
    return peer if peer and ":" in peer else None
