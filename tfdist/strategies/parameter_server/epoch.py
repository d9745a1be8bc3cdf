"""One epoch under the parameter-server strategy: schedules steps until every shard is exhausted.

    epoch = iter(per_worker_shards)
    step = epoch.step(train_function)     # StopIteration at the end of the first epoch
    epoch.finish()

A step is scheduled on any free worker. It does nothing if the shard of its worker is exhausted.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from absl import logging

if TYPE_CHECKING:
    from tfdist.strategies.parameter_server.coordinator import PerWorkerShards

_STEPS_AHEAD = 8  # scheduled per worker, so that no worker waits for the coordinator
_RETRY_SECONDS = 0.01  # between two steps that are scheduled for workers that still have data


class Epoch:
    """One epoch, which reads the iterator of each worker to its end.

    In the first epoch Keras requests steps until one raises StopIteration. In later epochs it
    requests the same number of steps, and `finish` adds further steps if some workers still have
    data.
    """

    def __init__(self, shards: PerWorkerShards) -> None:
        self._shards = shards
        self.element_spec = shards.element_spec
        # Created at the first step, because Keras creates an iterator that it does not use.
        self._iterators: Any = None
        self._in_flight: deque[_Step] = deque()
        self.trains = shards.trains
        self._steps = [0] * shards.coordinator.num_workers
        self._ended: set[int] = set(shards.coordinator.lost)
        self._last_progress = time.monotonic()
        self._fn: Any = None
        self._last_step: _Step | None = None

    def __iter__(self) -> Epoch:
        return self

    def __next__(self) -> Any:
        """The spec of a batch, for Keras 3; the batches themselves are on the workers."""
        return self.element_spec

    def step(self, fn: Any) -> _Step:
        self._fn = fn
        if self._iterators is None:
            self._iterators = self._shards.iterators()
            self._steps = list(self._shards.skipped) or self._steps
            self._last_progress = time.monotonic()
        while len(self._in_flight) >= self._steps_ahead():
            self._take_result()
        raises_at_end = self._shards.always_raises_at_end or not self._shards.runs_to_end
        if raises_at_end and self._is_over():
            self._shards.runs_to_end = not self._shards.has_steps
            self.finish()
            raise StopIteration
        if not self._is_over():
            result = self._shards.coordinator.schedule_guarded(fn, self._iterators)
            self._last_step = _Step(result, self._shards)
            self._in_flight.append(self._last_step)
        assert self._last_step is not None
        return self._last_step

    def live_logs(self) -> dict[str, Any]:
        """The logs of the newest finished step; waits for the first step.

        The returned dict is updated in place by later steps.
        """
        while not self._shards.live_logs and self._in_flight:
            self._take_result()
        return self._shards.live_logs

    def finish(self, to_end: bool = True) -> None:
        to_end = to_end and self._shards.runs_to_end
        while to_end and not self._is_over():
            self.step(self._fn)
        self._take_all_results()
        if to_end:
            self._shards.steps_of_epoch = tuple(self._steps)

    def steps(self) -> list[int]:
        """For each worker, the number of its steps in this epoch, including those before a restart.

        Waits for the scheduled steps.
        """
        self._take_all_results()
        return list(self._steps)

    def _steps_ahead(self) -> int:
        """The number of steps that may be in flight.

        Towards the end of the epoch, this is about the number of steps that will find data: the
        others take time too, and the next epoch waits for them.
        """
        workers = self._shards.coordinator.num_workers
        ahead = _STEPS_AHEAD * workers
        remaining = sum(self._shards.steps_of_epoch) - sum(self._steps)
        # Unknown in the first epoch, and in one with more data than the last.
        if remaining < 0 or not self._shards.steps_of_epoch:
            return ahead
        return min(ahead, max(remaining, workers))

    def _is_over(self) -> bool:
        if len(self._ended) == self._shards.coordinator.num_workers:
            return True
        seconds = time.monotonic() - self._last_progress
        if seconds < self._shards.coordinator.heartbeat_timeout or not self._ended:
            return False
        lost = sorted(set(range(self._shards.coordinator.num_workers)) - self._ended)
        logging.warning(
            "The epoch ends without the rest of the data of worker %s, which makes no steps.",
            ", ".join(map(str, lost)),
        )
        self._ended.update(lost)
        self._shards.coordinator.lost.update(lost)
        return True

    def _take_all_results(self) -> None:
        while self._in_flight:
            self._take_result()

    def _take_result(self) -> None:
        worker, had_data = self._in_flight.popleft().result()
        if worker in self._shards.coordinator.lost:
            self._shards.coordinator.lost.discard(worker)
            self._ended.discard(worker)
        if had_data:
            self._steps[worker] += 1
            self._last_progress = time.monotonic()
        elif worker not in self._ended:
            self._ended.add(worker)
            self._last_progress = time.monotonic()
        elif len(self._ended) < self._shards.coordinator.num_workers:
            # Otherwise this worker would take all steps from the workers that still have data.
            time.sleep(_RETRY_SECONDS)


class _Step(tf.distribute.experimental.coordinator.RemoteValue):
    """The logs of a scheduled step, as Keras expects them from a coordinator."""

    def __init__(self, remote_value: Any, shards: PerWorkerShards) -> None:
        self._remote_value = remote_value
        self._shards = shards

    def result(self) -> tuple[int, bool]:
        """Waits for the step; returns the worker that ran it, and whether it had data.

        If the worker was lost after the step, the step counts as one with data.
        """
        try:
            worker, had_data, logs = self._remote_value.fetch()
        except (tf.errors.UnavailableError, tf.errors.CancelledError):
            # The results of a step stay on its worker until they are fetched.
            returned = self._remote_value._get_values()
            if returned is None:
                raise
            return int(tf.DeviceSpec.from_string(returned[0].device).task), True
        if had_data or self._shards.logs is None:
            self._shards.set_logs(logs)
        return int(worker), bool(had_data)

    def fetch(self) -> Any:
        """The logs of the step, or of another step if the worker was lost after it."""
        self.result()
        return self._shards.logs

    def get(self) -> Any:
        return self._remote_value.get()[2]
