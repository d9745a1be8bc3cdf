"""The number of steps that the chief hands to a worker at once.

    length = ExecutionLength(workers=2)
    length.steps                        # 1, at first
    length.measured(1, seconds=0.01)    # the worker has made this step
    length.steps                        # 2

An execution costs the chief a message and some milliseconds of its CPU time, however many steps it
has.
"""

from __future__ import annotations

# The duration of an execution, and its least and greatest value. It delays a checkpoint, a
# preemption and the end of an epoch by up to this time, and costs the chief about 2 ms of CPU time.
# So with executions of 40 ms per worker, the chief uses a twentieth of a core for up to 75 workers.
_SECONDS_PER_WORKER, _MIN_SECONDS, _MAX_SECONDS = 0.04, 0.1, 3.0


class ExecutionLength:
    """Chooses the number of steps of the next execution by the duration of the last one.

    Args:
      workers: the number of workers.

    Attributes:
      steps: the number of steps of the next execution.
      limit: the maximum number of steps, which the user sets as `steps_per_execution`; None if the
        duration alone decides.
      seconds: the duration of the last execution with data.
    """

    def __init__(self, workers: int) -> None:
        self._wanted_seconds = min(max(_SECONDS_PER_WORKER * workers, _MIN_SECONDS), _MAX_SECONDS)
        self.steps = 1
        self.limit: int | None = None
        self.seconds = 0.0

    def measured(self, steps: int, seconds: float) -> None:
        """Sets the length of the next execution.

        Doubles it at most: the first execution of a worker also prepares its functions, and the
        duration of a long one should not be a surprise.

        Args:
          steps: the steps of an execution; 0 changes nothing.
          seconds: its duration on the worker.
        """
        if not steps:
            return
        self.seconds = seconds
        wanted = self.limit or int(self._wanted_seconds * steps / max(seconds, 1e-6))
        self.steps = max(1, min(2 * self.steps, wanted))
