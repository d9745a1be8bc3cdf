"""An exception that nobody catches ends its process at once, and the launcher learns of it.

    end_on_uncaught(os.environ.get(ERROR_FILE_VARIABLE))     # in a task
    read_uncaught(path)                                      # in its launcher

The first task with an exception takes the others with it, whose own exceptions say only that a peer
is gone: the time of each tells which was the cause.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from tfdist.errors import EXIT_FAILED, EXIT_USAGE, LostTaskError, OutputError, UsageError, log

#: Where a launcher wants to read of an uncaught exception.
ERROR_FILE_VARIABLE = "TFDIST_ERROR_FILE"

# How TensorFlow says which task it has lost: no sign of life,
_REPORTED = re.compile(r"Error reported from /job:(\w+)/(?:replica:0/)?task:(\d+)")
# or a connection that broke. But it ends so whatever another task has answered, too.
_REMOTE = re.compile(r"remote target /job:(\w+)/(?:replica:0/)?task:(\d+)")
_CONNECTION_ERRORS = (
    "AbortedError",
    "CancelledError",
    "DeadlineExceededError",
    "InternalError",
    "UnavailableError",
    "UnknownError",
)
# Horovod's own word, and Gloo's, where a rank is lost in the middle of a collective operation.
_LOST_RANK = re.compile(r"Horovod has been shut down|/gloo/transport/\S+\] ")


@dataclass(frozen=True)
class Uncaught:
    """An uncaught exception: what it says, in a line, and when, in seconds since 1970."""

    error: str
    time: float


def end_on_uncaught(error_file: str | None) -> None:
    """From now on an uncaught exception ends the process as soon as its traceback is printed.

    A UsageError (code 2), an OutputError and a LostTaskError (code 1) are one line, without a
    traceback.

    Else TensorFlow's and Horovod's threads keep the process, and with it the whole job, from
    ending: a worker that has failed still answers its peers while Python waits for them.

    Args:
      error_file: where to write of it; None where nobody asks.
    """
    print_traceback = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        since = time.time()

        def tell(cause: str) -> None:
            write_uncaught(error_file, f"{kind.__name__}: {cause}".removesuffix(": "), since)

        lost = lost_peer(error)
        lost = lost and f"{lost} was lost"
        tell(lost or next(iter(str(error).strip().splitlines()), ""))
        code = EXIT_FAILED
        if isinstance(error, (UsageError, OutputError, LostTaskError)):
            # It says all that there is to know, and what to do.
            log(f"error: {error}")
            code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
        else:
            print_traceback(kind, error, trace)
            # By its name, because this module does not import TensorFlow.
            if kind.__name__ == "DataLossError":
                log("error: a file is damaged. Find it with: tfdist data verify FILE...")
            elif lost:
                log(f"error: {lost}")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else code)

    sys.excepthook = end


def end(error: BaseException) -> None:
    """Ends the process as if nobody had caught `error`; to be called in any thread."""
    sys.excepthook(type(error), error, error.__traceback__)
    os._exit(EXIT_FAILED)


def lost_peer(error: BaseException) -> str | None:
    """The task whose loss TensorFlow or Horovod reports in an exception; None in any other.

    Horovod does not know which rank it was.
    """
    message = str(error)
    match = _REPORTED.search(message)
    if match is None and type(error).__name__ in _CONNECTION_ERRORS:
        match = _REMOTE.search(message)
    if match:
        return f"{match[1]}:{match[2]}"
    return "another rank" if _LOST_RANK.search(message) else None


def read_uncaught(error_file: Path) -> Uncaught | None:
    """What a task has written of its exception; None where it has not had one."""
    try:
        return Uncaught(**json.loads(error_file.read_text()))
    except FileNotFoundError:
        return None


def write_uncaught(error_file: str | None, error: str, since: float) -> None:
    """Writes what `read_uncaught` reads, if anybody wants to."""
    if not error_file:
        return
    path = Path(error_file)
    beside = path.with_suffix(".new")
    try:
        beside.write_text(json.dumps(asdict(Uncaught(error, since))))
        os.replace(beside, path)
    except OSError:
        pass  # The launcher is gone; the traceback is what counts.
