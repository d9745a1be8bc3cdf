"""One epoch under the parameter-server strategy: schedules runs until every shard is exhausted.

    epoch = iter(per_worker_shards)
    logs = epoch.step(train_function)     # StopIteration at the end of the first epoch
    epoch.finish()

The chief hands a worker a run, which is a number of steps, because each message costs the chief
some milliseconds. A run takes place on any free worker, and ends early if the shard of its worker
is exhausted.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf
from absl import logging

if TYPE_CHECKING:
    from tfdist.strategies.parameter_server.coordinator import PerWorkerShards

_STEPS_AHEAD = 8  # scheduled per worker, so that no worker waits for the coordinator
_RUNS_AHEAD = 2  # the same in runs, where a run is long
_RETRY_SECONDS = 0.01  # between two runs that are scheduled for workers that still have data
_ERROR_POLL_SECONDS = 1.0  # between two looks whether a run has failed


class Run(NamedTuple):
    """The result of a run.

    Attributes:
      worker: the index of the worker that made it.
      requested: the maximum number of its steps.
      steps: the number of its steps.
      seconds: its duration on the worker.
      logs: the logs of its last step.
    """

    worker: int
    requested: int
    steps: int
    seconds: float
    logs: Any


class Epoch:
    """One epoch, which reads the iterator of each worker to its end.

    In the first epoch Keras requests steps until one raises StopIteration. In later epochs it
    requests the same number of steps, and `finish` adds further runs if some workers still have
    data.
    """

    def __init__(self, shards: PerWorkerShards) -> None:
        self._shards = shards
        self._coordinator = shards.coordinator
        self.element_spec = shards.element_spec
        self.trains = shards.trains
        # Created at the first step, because Keras creates an iterator that it does not use.
        self._iterators: Any = None
        self._finished: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._runs_in_flight = 0
        # Steps that Keras has requested and that are not scheduled yet.
        self._requested = 0
        self._steps = [0] * self._coordinator.num_workers
        self._ended: set[int] = set(self._coordinator.lost)
        self._last_progress = time.monotonic()
        self._fn: Any = None
        # The steps that Keras may still request until `join`; None for any number.
        self.steps_per_epoch = self.steps_left = shards.steps_per_epoch

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        """The spec of a batch, for Keras 3; the batches themselves are on the workers."""
        return self.element_spec

    def step(self, fn: Callable[[Any], Any], steps: int = 1) -> Logs:
        """Requests steps, and schedules a run when enough of them are requested.

        Args:
          fn: makes one step; takes an iterator and returns the logs.
          steps: the number of steps.

        Raises:
          StopIteration: the data has ended.
        """
        self._fn = fn
        if self._iterators is None:
            self._iterators = self._shards.iterators()
            self._steps = list(self._shards.skipped) or self._steps
            self._last_progress = time.monotonic()
        self._take_finished()
        raises_at_end = self._shards.always_raises_at_end or not self._shards.runs_to_end
        if raises_at_end and self._is_over():
            self._shards.runs_to_end = self._shards.steps_per_epoch is None
            self.finish()
            raise StopIteration
        self._requested += steps
        if steps > 1:
            self._shards.length.limit = max(steps, self._shards.length.limit or 0)
        if self._requested >= self._shards.length.steps:
            self._schedule(self._shards.length.steps)
        return Logs(self)

    def live_logs(self) -> dict[str, Any]:
        """The logs of the newest finished run; waits for the first run.

        The returned dict is updated in place by later runs.
        """
        self._wait_for_logs()
        return self._shards.live_logs

    def newest_logs(self) -> Any:
        """The logs of the newest finished run; waits for the first run."""
        self._wait_for_logs()
        return self._shards.logs

    def finish(self, to_end: bool = True) -> None:
        """Waits for the requested steps.

        Args:
          to_end: whether to read the data to the end, if the number of steps is not fixed.
        """
        to_end = to_end and self._shards.runs_to_end
        while to_end and not self._is_over():
            self._schedule(self._shards.length.steps)
        self._finish_requested()
        if to_end:
            self._shards.steps_of_epoch = tuple(self._steps)

    def steps(self) -> list[int]:
        """For each worker, the number of its steps in this epoch, including those before a restart.

        Waits for the requested steps.
        """
        self._finish_requested()
        return list(self._steps)

    def _finish_requested(self) -> None:
        workers = self._coordinator.num_workers
        while True:
            if self._requested <= 0 or self._is_over():
                if not self._runs_in_flight:
                    break
                self._take_result()  # A run that ends early leaves some of its steps to others.
                continue
            share = -(-self._requested // workers)
            self._schedule(min(share, self._shards.length.steps))
        self._requested = 0

    def _schedule(self, steps: int) -> None:
        """Schedules a run when there are few enough of them."""
        while self._runs_in_flight >= self._runs_ahead():
            self._take_result()
        if self._is_over():
            return
        self._coordinator.schedule_run(self._fn, self._iterators, steps, self._finished.put)
        self._requested = max(0, self._requested - steps)
        self._runs_in_flight += 1

    def _runs_ahead(self) -> int:
        """The number of runs that may be in flight.

        Towards the end of the epoch, this is about the number of runs that will find data: the
        others take time too, and the next epoch waits for them.
        """
        workers, length = self._coordinator.num_workers, self._shards.length.steps
        ahead = max(_RUNS_AHEAD, _STEPS_AHEAD // length) * workers
        remaining = sum(self._shards.steps_of_epoch) - sum(self._steps)
        # Unknown in the first epoch, and in one with more data than the last.
        if remaining < 0 or not self._shards.steps_of_epoch:
            return ahead
        return min(ahead, max(-(-remaining // length), workers))

    def _is_over(self) -> bool:
        workers = self._coordinator.num_workers
        if len(self._ended) == workers:
            return True
        seconds = time.monotonic() - self._last_progress
        patience = self._coordinator.heartbeat_timeout + 4 * self._shards.length.seconds
        if seconds < patience or not self._ended:
            return False
        lost = sorted(set(range(workers)) - self._ended)
        logging.warning(
            "The epoch ends without the rest of the data of worker %s, which makes no steps.",
            ", ".join(map(str, lost)),
        )
        self._ended.update(lost)
        self._coordinator.lost.update(lost)
        return True

    def _wait_for_logs(self) -> None:
        while self._shards.logs is None:
            if self._requested:
                self._schedule(self._requested)
            elif self._runs_in_flight:
                self._take_result()
            else:
                break

    def _take_finished(self) -> None:
        while self._runs_in_flight and not self._finished.empty():
            self._take_result()

    def _take_result(self) -> None:
        run = self._next_result()
        self._runs_in_flight -= 1
        worker, workers = run.worker, self._coordinator.num_workers
        if worker in self._coordinator.lost:
            self._coordinator.lost.discard(worker)
            self._ended.discard(worker)
        if run.steps:
            self._steps[worker] += run.steps
            self._last_progress = time.monotonic()
            self._shards.length.measured(run.steps, run.seconds)
        if run.steps or self._shards.logs is None:
            self._shards.set_logs(run.logs)
        if run.steps == run.requested:
            return
        if self._shards.steps_per_epoch is not None or not self._shards.runs_to_end:
            # The other workers make the rest of the requested steps.
            self._requested += run.requested - run.steps
        if worker not in self._ended:
            self._ended.add(worker)
            self._last_progress = time.monotonic()
        elif len(self._ended) < workers:
            # Otherwise this worker would take all runs from the workers that still have data.
            time.sleep(_RETRY_SECONDS)

    def _next_result(self) -> Run:
        while True:
            try:
                return self._finished.get(timeout=_ERROR_POLL_SECONDS)
            except queue.Empty:
                self._coordinator.done()  # Raises the error of a failed run.


class Logs(tf.distribute.experimental.coordinator.RemoteValue):
    """The logs of the newest run, as Keras 2 expects them from a coordinator."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch

    def fetch(self) -> Any:
        return self._epoch.newest_logs()

    def get(self) -> Any:
        return self._epoch.newest_logs()
