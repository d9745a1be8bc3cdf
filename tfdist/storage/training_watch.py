"""Tells an evaluator that the training has ended without a completion marker.

    watch = TrainingWatch(OutputDirectory("/shared/run1"), timeout=300.0)
    while not is_complete():
        watch.wait()         # raises OutputError when no chief has run for 300 s

The chief holds the lock of the output directory while it trains, on this machine or another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tfdist.errors import OutputError, log
from tfdist.storage import lock
from tfdist.storage.output_directory import OutputDirectory

_POLL_SECONDS = 1.0
# Seconds after which the log says what the evaluator waits for.
_NOTICE_SECONDS = 30.0


@dataclass(eq=False)
class TrainingWatch:
    """Looks for the chief of the training in an output directory.

    Args:
      output: the output directory.
      timeout: seconds without a chief after which there is none.
      sleep: waits for a number of seconds.
    """

    output: OutputDirectory
    timeout: float
    sleep: Callable[[float], None] = time.sleep
    _missing: float = 0.0
    _has_trained: bool = False

    def wait(self) -> None:
        """Looks once, and sleeps for a second.

        Raises:
          OutputError: no chief has run for too long, without the time between two calls.
        """
        if lock.is_held(self.output.lock) is False:
            self._missing += _POLL_SECONDS
        else:  # Where the file system has no locks, nothing is known.
            self._missing, self._has_trained = 0.0, True
        if self._missing == _NOTICE_SECONDS:
            log(
                f"the evaluator waits for the chief: no training runs in {self.output.path}; it "
                f"gives up in {max(0.0, self.timeout - self._missing):.0f} s"
            )
        if self._missing >= self.timeout:
            ended = "has ended before it was complete" if self._has_trained else "has not started"
            raise OutputError(
                self.output.path,
                problem=f"has no training to evaluate: the chief {ended}, and none has run for "
                f"{self.timeout:g} s (--startup_timeout)",
                remedy="Look at the log of the chief, and start both again.",
            )
        self.sleep(_POLL_SECONDS)
