"""Errors that are printed to the user as one sentence, and the exit codes of a task."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2


def log(text: str) -> None:
    """Prints `tfdist: text` on stderr and flushes, so that the line is not lost or delayed."""
    print(f"tfdist: {text}", file=sys.stderr, flush=True)


class UsageError(ValueError):
    """Something given to tfdist (a flag, TF_CONFIG, a file) cannot be used as it is.

    Args:
      field: where the value came from, as the user spells it: `--task_index`, `TF_CONFIG task`.
      received: the value that was found there.
      accepted: what would have been accepted, in words.
      remedy: what to do about it, as an imperative sentence.
    """

    def __init__(self, field: str, *, received: Any, accepted: str, remedy: str) -> None:
        self.field = field
        self.received = received
        self.accepted = accepted
        self.remedy = remedy
        super().__init__(f"{field}: received {received!r}; accepted: {accepted}. {remedy}")


class OutputError(RuntimeError):
    """The output directory could not be written, or nothing that can be read is left in it.

    Args:
      path: the file or the directory.
      problem: what is wrong with it.
      remedy: what to do about it, as an imperative sentence.
    """

    def __init__(self, path: Any, *, problem: str, remedy: str) -> None:
        super().__init__(f"{path} {problem}. {remedy}")


class LostTaskError(RuntimeError):
    """Another task of the job gives no sign of life.

    Args:
      task: its name.
      address: where it should answer.
      seconds: for how long it has not.
    """

    def __init__(self, task: str, address: str, seconds: float) -> None:
        super().__init__(
            f"{task} was lost: at {address} nothing has answered for {seconds:g} s "
            "(--heartbeat_timeout)"
        )


@contextmanager
def exit_on_usage_error() -> Iterator[None]:
    """Prints a UsageError as one line on stderr and exits with code 2, as argparse does.

    It is a context manager, and a decorator for a script's `main`.
    """
    try:
        yield
    except UsageError as error:
        log(f"error: {error}")
        sys.exit(EXIT_USAGE)
