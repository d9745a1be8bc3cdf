"""The lowest severity that TensorFlow's C++ code prints: by default, only errors.

    log_level.of(["--verbosity=1"])     # '0': everything
    release = log_level.hold()          # before other code that logs below the level
    release()                           # after it

TensorFlow does not obey TF_CPP_MIN_LOG_LEVEL everywhere: some messages are printed before it reads
the variable, and some harmless ones have the level ERROR: three lines in each task with TensorFlow
2.15, seven with 2.18 and 2.21. The program `message_filter.py` removes them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

VARIABLE = "TF_CPP_MIN_LOG_LEVEL"
# Hides information and warnings: TensorFlow warns in healthy runs, too.
_ERRORS = "2"
_VERBOSITY = re.compile(r"--?(?:verbosity|v)(?:=(.*))?")
_FILTER = Path(__file__).with_name("message_filter.py")
# The longest time in which the filter prints its last messages. It takes longer if a process that
# was started meanwhile still has the filter as its stderr.
_SECONDS = 1.0


def of(arguments: Sequence[str]) -> str:
    """The value of TF_CPP_MIN_LOG_LEVEL for a command line.

    absl's flag `--verbosity` selects the same severities of C++ messages as of Python messages: -1
    adds warnings, 0 and more add information. TensorFlow reads the variable before flags are
    parsed.

    Args:
      arguments: the words of the command line.
    """
    level = _ERRORS
    for word, following in pairwise([*arguments, ""]):
        if word == "--":
            break
        match = _VERBOSITY.fullmatch(word)
        if match:
            # Of a script with other flags the value may be no number.
            with suppress(ValueError):
                level = str(max(0, -int(following if match[1] is None else match[1])))
    return level


def hold(environ: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """Filters what this process writes to its file descriptor 2.

    The filter is a process of its own, so that no message is lost if this process crashes.

    Args:
      environ: the environment, for the log level.

    Returns:
      A function that ends the filter; otherwise it ends with this process.
    """
    level = environ.get(VARIABLE, "")
    if not level.isdecimal() or int(level) == 0:
        return lambda: None
    command = [sys.executable, "-PS", str(_FILTER), level]
    try:
        stderr = os.dup(2)
        # With O_DIRECT the filter reads each message separately.
        reader, writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
        # In a session of its own: a signal to this group must not end it before this process.
        process = subprocess.Popen(command, stdin=reader, stdout=2, start_new_session=True)
    except OSError:
        # There is no stderr, or the sandbox lacks something.
        return lambda: None
    os.dup2(writer, 2)
    os.close(writer)
    os.close(reader)

    def release() -> None:
        os.dup2(stderr, 2)
        os.close(stderr)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS)

    return release
