"""`Epoch`: the iterator that Keras gets for an epoch; its steps run on the workers.

epoch = iter(per_worker_shards)
epoch.step(train_function)     # StopIteration at the end of the first epoch
epoch.finish()
"""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.strategies.parameter_server.steps.shards import PerWorkerShards
from tfdist.strategies.parameter_server.steps.worker_thread import Result, WorkerThread

_POLL_SECONDS = 1.0  # between two looks at lost workers


class Epoch(ABC):
    """One epoch, which reads each worker's shard to its end, or makes a fixed number of steps.

    In the first epoch Keras requests steps until one raises StopIteration. In later epochs it
    requests the same number of steps, and `finish` makes the rest.

    Args:
      shards: the shards.
      threads: the thread of each worker.
      clock: returns seconds.

    Attributes:
      steps_left: the steps that Keras may still request until `join`; None for any number.
    """

    def __init__(
        self,
        shards: PerWorkerShards,
        threads: Sequence[WorkerThread] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shards = shards
        self._threads = threads
        self._clock = clock
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        # Set by the first step, because Keras creates an epoch that it does not use.
        self._epoch = 0
        self.element_spec = shards.element_spec
        self.trains = shards.trains
        self.steps_per_epoch = self.steps_left = shards.steps_per_epoch
        # Those before a restart.
        self._old_steps = 0
        # By shard, the steps before Keras's current epoch; less than 0 if those before a restart
        # are not among those of this object.
        self._before: list[int] = []

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        """The spec of a batch, for Keras 3; the batches themselves are on the workers."""
        return self.element_spec

    @abstractmethod
    def step(self, fn: Callable[[Any], Any], steps: int = 1) -> None:
        """Requests steps, which may still be in flight when this returns.

        Args:
          fn: makes one step; takes an iterator and returns the logs.
          steps: the number of steps.

        Raises:
          StopIteration: the data has ended.
        """

    def live_logs(self) -> dict[str, Any]:
        """The logs of a recent step; the returned dict is updated in place by later steps."""
        self.newest_logs()
        return self._shards.live_logs

    @abstractmethod
    def newest_logs(self) -> Any:
        """The logs of the newest finished step."""

    @abstractmethod
    def finish(self, to_end: bool = True) -> None:
        """Waits for the requested steps.

        Args:
          to_end: whether to read the data to the end, if the number of steps is not fixed.
        """

    def measured(self) -> dict[str, float]:
        """The timing and staleness of the steps so far, by name; see `EpochTimes.values`."""
        return {}

    def steps_by_worker(self) -> dict[str, int]:
        """The steps of each worker in Keras's last epoch, where they do not make the same ones."""
        return {}

    @abstractmethod
    def steps_so_far(self) -> int:
        """The number of weight updates of this epoch that are known to be made, including those
        before a restart."""

    @property
    def new_steps(self) -> int:
        """The number of weight updates without those before a restart."""
        return self.steps_so_far() - self._old_steps

    @abstractmethod
    def steps(self) -> list[int]:
        """For each shard, the number of its steps in this epoch, including those before a restart.

        Waits for the requested steps.
        """

    def position(self) -> list[int]:
        """For each shard, the number of its steps since the beginning of Keras's epoch.

        Like `steps`, but with `steps_per_epoch`, Keras reads several of its epochs from this one.
        """
        steps = self.steps()
        before = self._before or [0] * len(steps)
        return [now - then for now, then in zip(steps, before, strict=True)]

    def start_after(self, steps: Sequence[int]) -> None:
        """Counts steps that were made before a restart, and whose data are not read again."""
        self._before = [-each for each in steps]

    def begin_next(self) -> None:
        """Begins Keras's next epoch, which reads on here with `steps_per_epoch`."""
        self._before = self.steps()
        self.steps_left = self.steps_per_epoch

    def _next_result(self) -> Result | None:
        """Waits for the result of a request, and raises its error; None if there is none for some
        time."""
        try:
            result = self._results.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            return None
        if result.error is not None:
            raise result.error
        return result

    def _stop_if_requested(self) -> None:
        """Finishes this epoch, whose data has ended, if Keras has to be told.

        Raises:
          StopIteration: tells Keras that the data has ended.
        """
        if self._shards.always_raises_at_end or not self._shards.runs_to_end:
            self._shards.runs_to_end = self._shards.steps_per_epoch is None
            self.finish()
            raise StopIteration


class Logs(tf.distribute.experimental.coordinator.RemoteValue):
    """The logs of an epoch, for Keras 2. Its callbacks call `get` as on a dict."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

    def fetch(self) -> Any:
        return self._epoch.newest_logs()

    def get(self, name: str | None = None, default: Any = None) -> Any:
        logs = self._epoch.newest_logs()
        return logs if name is None else logs.get(name, default)
