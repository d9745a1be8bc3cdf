"""Measures where asynchronous steps spend their time, and how stale their gradients are.

times = EpochTimes(workers=2)
times.add(worker=0, steps=10, seconds=Seconds(total=0.1, input=0.01, communication=0.02))
times.values()      # {"staleness/mean": 0.0, "seconds/step": 0.01, …}
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Seconds(NamedTuple):
    """The seconds of several steps on a worker.

    Attributes:
      total: from the request to the last update.
      input: waiting for the next batch alone.
      communication: reading weights, and sending and applying gradients; NaN if unknown.
    """

    total: float
    input: float
    communication: float


class EpochTimes:
    """Sums the seconds of an epoch's steps on each worker: in total, for input, for communication.

    The steps begin when it is created.

    Args:
      workers: their number.
      clock: returns seconds, from any starting point.
    """

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._ended = clock()
        # By worker; the seconds as in `Seconds`.
        self._steps = np.zeros(workers)
        self._seconds = np.zeros([workers, 3])

    def add(self, worker: int, steps: int, seconds: Seconds) -> None:
        """Adds steps that a worker has just made."""
        self._ended = self._clock()
        self._steps[worker] += steps
        self._seconds[worker] += seconds

    def values(self) -> dict[str, float]:
        """The values that are reported at the end of an epoch, by name; empty without a step.

        `staleness/mean` is the mean number of updates by other workers between the moment at which
        a step reads the weights and its own update, and `staleness/max` that of the worker with the
        greatest one. Both follow from the steps and seconds of each worker, if all make their
        steps evenly. The seconds are means over all steps.
        """
        steps, elapsed = self._steps.sum(), self._ended - self._begun
        if not steps or elapsed <= 0:
            return {}
        total, waited, sent = self._seconds.sum(axis=0)
        # While a worker makes a step, the others make updates at their mean rates.
        busy = (self._seconds[:, 0] - self._seconds[:, 1]) / elapsed
        stale = (steps - self._steps) * np.minimum(1.0, busy)
        has_steps = self._steps > 0
        found = {
            "staleness/mean": stale.sum() / steps,
            "staleness/max": (stale[has_steps] / self._steps[has_steps]).max(),
            "seconds/step": total / steps,
            "seconds/input": waited / steps,
            "seconds/communication": sent / steps,
            "seconds/compute": (total - waited - sent) / steps,
        }
        return {name: float(value) for name, value in found.items() if not np.isnan(value)}
