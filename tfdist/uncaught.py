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

from tfdist.errors import EXIT_FAILED, EXIT_USAGE, OutputError, UsageError

#: Where a launcher wants to read of an uncaught exception.
ERROR_FILE_VARIABLE = "TFDIST_ERROR_FILE"

# How TensorFlow says which task it has lost: no sign of life, or a connection that broke.
_LOST_TASK = re.compile(
    r"(?:Error reported from|remote target) /job:(\w+)/(?:replica:0/)?task:(\d+)"
)
_LOST_RANK = "Horovod has been shut down"


@dataclass(frozen=True)
class Uncaught:
    """An uncaught exception: what it says, in a line, and when, in seconds since 1970."""

    error: str
    time: float


def end_on_uncaught(error_file: str | None) -> None:
    """From now on an uncaught exception ends the process as soon as its traceback is printed.

    A UsageError (code 2) and an OutputError (code 1) are one line, without a traceback.

    Else TensorFlow's and Horovod's threads keep the process, and with it the whole job, from
    ending: a worker that has failed still answers its peers while Python waits for them.

    Args:
      error_file: where to write of it; None where nobody asks.
    """
    print_traceback = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error_file:
            _write(Path(error_file), kind, error)
        code = EXIT_FAILED
        if isinstance(error, (UsageError, OutputError)):
            # It says all that there is to know, and what to do.
            print(f"tfdist: error: {error}", file=sys.stderr)
            code = EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
        else:
            print_traceback(kind, error, trace)
            if lost := lost_peer(str(error)):
                print(f"tfdist: error: {lost} was lost", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else code)

    sys.excepthook = end


def lost_peer(message: str) -> str | None:
    """The task whose loss TensorFlow or Horovod reports in an exception; None in any other.

    Horovod does not know which rank it was.
    """
    if match := _LOST_TASK.search(message):
        return f"{match[1]}:{match[2]}"
    return "another rank" if _LOST_RANK in message else None


def read_uncaught(error_file: Path) -> Uncaught | None:
    """What a task has written of its exception; None where it has not had one."""
    try:
        return Uncaught(**json.loads(error_file.read_text()))
    except FileNotFoundError:
        return None


def _write(error_file: Path, kind: type[BaseException], error: BaseException) -> None:
    lost = lost_peer(str(error))
    first_line = f"{lost} was lost" if lost else next(iter(str(error).strip().splitlines()), "")
    uncaught = Uncaught(f"{kind.__name__}: {first_line}".removesuffix(": "), time.time())
    beside = error_file.with_suffix(".new")
    try:
        beside.write_text(json.dumps(asdict(uncaught)))
        os.replace(beside, error_file)
    except OSError:
        pass  # The launcher is gone; the traceback is what counts.
