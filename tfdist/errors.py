"""Errors that users see as one line, the exit codes of a task, and the log function."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
#: The task was preempted and has saved; start the job again to resume (EX_TEMPFAIL of sysexits.h).
EXIT_PREEMPTED = 75

#: The environment variable with the path of the file in which a task reports its exception to the
#: launcher that has started it.
ERROR_FILE_VARIABLE = "TFDIST_ERROR_FILE"


def log(text: str) -> None:
    """Prints `tfdist: text` on stderr and flushes it immediately."""
    print(f"tfdist: {text}", file=sys.stderr, flush=True)


class UsageError(ValueError):
    """An input to tfdist (a flag, TF_CONFIG, a file) is invalid.

    Args:
      field: the name of the input, as the user writes it: `--task_index`, `TF_CONFIG task`.
      received: the value received.
      accepted: the values accepted, in words.
      remedy: what the user should do, as an imperative sentence.
    """

    # AutoGraph would raise an error of its own instead of one that passes through its functions.
    ag_pass_through = True

    def __init__(self, field: str, *, received: object, accepted: str, remedy: str) -> None:
        self.field = field
        self.received = received
        self.accepted = accepted
        self.remedy = remedy
        super().__init__(f"{field}: received {received!r}; accepted: {accepted}. {remedy}")

    @classmethod
    def choice(cls, field: str, received: object, choices: Iterable[str]) -> UsageError:
        """The error of a value that is none of the choices."""
        names = list(choices)
        close = get_close_matches(str(received), names, n=1)
        remedy = f"Did you mean {close[0]}?" if close else "Choose one of these."
        return cls(field, received=received, accepted=", ".join(names), remedy=remedy)


def refuse(
    given: Mapping[str, object], accepted: str, remedy: str = "Leave one of them out."
) -> None:
    """Raises a UsageError if any of these flags was given.

    Args:
      given: their values, by name without dashes.
      accepted: what is accepted, in words.
      remedy: what the user should do.

    Raises:
      UsageError: one was given; the error names the first.
    """
    for name, value in given.items():
        raise UsageError(f"--{name}", received=value, accepted=accepted, remedy=remedy)


@contextmanager
def os_error_is_usage_error(
    field: str, received: object, accepted: str, remedy: str = "Choose another one."
) -> Iterator[None]:
    """Converts an OSError, or the ValueError for an invalid path or text, to a UsageError.

    Args:
      field, received, accepted, remedy: as of `UsageError`; the reason is added to `accepted`.

    Raises:
      UsageError: the block has raised such an error.
    """
    try:
        yield
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        accepted = f"{accepted} ({why})"
        raise UsageError(field, received=received, accepted=accepted, remedy=remedy) from None


class DisagreementError(UsageError):
    """The tasks of a job differ in what they do, so they cannot train together.

    Args:
      sentence: which tasks differ in what, and what the user should do.
    """

    def __init__(self, sentence: str) -> None:
        ValueError.__init__(self, sentence)


class OutputError(RuntimeError):
    """The output directory cannot be written, or it contains nothing readable.

    Args:
      path: the file or directory.
      problem: what is wrong with it.
      remedy: what the user should do, as an imperative sentence.
    """

    def __init__(self, path: object, *, problem: str, remedy: str) -> None:
        super().__init__(f"{path} {problem}. {remedy}")


class LostTaskError(RuntimeError):
    """Another task of the job no longer answers.

    Args:
      task: the task's name.
      address: the task's address.
      seconds: how long the task has not answered.
      flag: the flag that sets this time.
      what: what was observed; default: that nothing at the address has answered.

    Attributes:
      task: the task's name.
      address, seconds, what: as above.
    """

    def __init__(
        self,
        task: str,
        address: str,
        seconds: float,
        flag: str = "--heartbeat_timeout",
        *,
        what: str | None = None,
    ) -> None:
        what = what or f"nothing at {address} has answered"
        self.task, self.address, self.seconds, self.what = task, address, seconds, what
        super().__init__(f"{task} was lost: {what} for {seconds:g} s ({flag})")


class HangError(RuntimeError):
    """The job makes no step.

    Args:
      task: the name of the task that the others wait for; empty if it is not known.
      what: what is known about it, as a sentence.
      seconds: how long the job has made no step.
      report: where the hang report is, such as `in /shared/run1/hang_report.txt`.

    Attributes:
      task: the task's name.
    """

    def __init__(self, task: str, what: str, seconds: float, report: str) -> None:
        self.task = task
        super().__init__(
            f"no step for {seconds:.0f} s (--step_timeout): {what}. The Python stacks of all tasks "
            f"are {report}"
        )


@contextmanager
def exit_on_usage_error() -> Iterator[None]:
    """Prints a UsageError as one line on stderr and exits with code 2, as argparse does.

    Use it as a context manager, or as a decorator of a script's `main`.
    """
    try:
        yield
    except Exception as error:
        found = _usage_error_in(error)
        if found is None:
            raise
        log(f"error: {found}")
        sys.exit(EXIT_USAGE)


def _usage_error_in(error: BaseException) -> UsageError | None:
    """The UsageError that an error is, or that Keras has wrapped because a layer raised it."""
    inner: BaseException | None = error
    while inner is not None and str(inner) in str(error):
        if isinstance(inner, UsageError):
            return inner
        inner = inner.__cause__ or inner.__context__
    return None
