"""One epoch of asynchronous steps: each worker makes steps independently of the others.

The chief hands a worker an execution, which is several steps, because each message costs the chief
some milliseconds. An execution ends early if the shard of its worker ends. If the number of steps
is fixed, fast workers make more of them than slow ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from absl import logging

from tfdist.strategies.parameter_server.steps.epoch import Epoch
from tfdist.strategies.parameter_server.steps.shards import PerWorkerShards
from tfdist.strategies.parameter_server.steps.timing import EpochTimes
from tfdist.strategies.parameter_server.steps.worker_functions import Execution
from tfdist.strategies.parameter_server.steps.worker_thread import Request, WorkerThread

_STEPS_AHEAD = 8  # in flight per worker, so that no worker waits for the chief
_EXECUTIONS_AHEAD = 2  # the same in executions, where these are long


class AsynchronousEpoch(Epoch):
    """One epoch of asynchronous steps.

    Args:
      shards: the shards.
      threads: the thread of each worker.
      execution_of: returns the function of several steps; see `worker_functions.Execution`.
      patience: seconds to wait for the return of a lost worker that has data left.
      clock: returns seconds.
    """

    def __init__(
        self,
        shards: PerWorkerShards,
        threads: Sequence[WorkerThread],
        execution_of: Callable[[Callable[[Any], Any], Any], Execution],
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(shards, threads, clock)
        self._execution_of = execution_of
        self._patience = patience
        self._times = EpochTimes(len(threads), clock)
        self._execution: Execution
        # Steps that Keras has requested and that are in no execution yet.
        self._requested = 0
        # All steps that Keras has requested, and those before a restart.
        self._requested_so_far = 0
        # The request after which Keras 3 must wait for the end of the data; None for any.
        self._expected: int | None = None
        # By worker: the steps made, and the executions in flight.
        self._steps = [0] * len(threads)
        self._in_flight: list[list[Request]] = [[] for _ in threads]
        # The workers whose shard has ended.
        self._ended: set[int] = set()

    def step(self, fn: Callable[[Any], Any], steps: int = 1) -> None:
        self._execution = self._execution_of(fn, self._shards.iterator_spec)
        if not self._epoch:
            self._times = EpochTimes(len(self._threads), self._clock)
            self._epoch, self._steps = self._shards.begin_epoch()
            self._old_steps = self._requested_so_far = self.steps_so_far()
            if self._shards.always_raises_at_end and self._shards.steps_per_epoch is None:
                of_last_epoch = sum(self._shards.steps_of_epoch)
                self._expected = of_last_epoch or self._shards.length_of_first_epoch
        while not self._results.empty():
            self._take_result()
        if self._is_over():
            self._stop_if_requested()
        self._requested += steps
        self._requested_so_far += steps
        if steps > 1:
            self._shards.length.limit = max(steps, self._shards.length.limit or 0)
        if self._expected is not None and self._requested_so_far > self._expected:
            # Keras 3 shows the number of its requests, and calls callbacks for each of them. So a
            # request beyond the expected length of the epoch waits until a worker has made its
            # step. Any of them may have data left.
            self._requested = max(self._requested, len(self._unfinished()))
            self._finish_requested()
            if self.steps_so_far() <= self._requested_so_far - steps:
                self._stop_if_requested()
        elif self._requested >= self._shards.length.steps:
            self._schedule(self._shards.length.steps)

    def newest_logs(self) -> Any:
        if self._shards.logs is None:
            self._finish_requested()
        return self._shards.logs

    def finish(self, to_end: bool = True) -> None:
        to_end = to_end and self._shards.runs_to_end
        while to_end and not self._is_over():
            self._schedule(self._shards.length.steps)
        self._finish_requested()
        if to_end:
            self._shards.steps_of_epoch = tuple(self._steps)

    def measured(self) -> dict[str, float]:
        return self._times.values()

    def steps_so_far(self) -> int:
        return sum(self._steps)

    def steps(self) -> list[int]:
        self._finish_requested()
        return list(self._steps)

    def _finish_requested(self) -> None:
        while True:
            if self._requested > 0 and not self._is_over():
                share = -(-self._requested // len(self._threads))
                self._schedule(min(share, self._shards.length.steps))
            elif self._is_working():
                self._take_result()
            elif any(self._in_flight):
                self._withdraw_lost()  # The other workers make these steps.
            else:
                break
        self._requested = 0

    def _schedule(self, steps: int) -> None:
        """Starts an execution on a worker that has few in flight; waits for such a worker."""
        while not self._is_over():
            worker = self._free_worker()
            if worker is not None:
                self._start(worker, steps)
                return
            self._take_result()

    def _free_worker(self) -> int | None:
        """The worker for the next execution; None if all have enough."""
        length = self._shards.length.steps
        ahead = max(_EXECUTIONS_AHEAD, _STEPS_AHEAD // length)
        found = [
            worker
            for worker in self._unfinished()
            if self._threads[worker].lost_since is None
            and len(self._in_flight[worker]) < (1 if self._is_at_its_end(worker) else ahead)
        ]
        return min(
            found,
            key=lambda each: (len(self._in_flight[each]), self._scheduled(each)),
            default=None,
        )

    def _is_at_its_end(self, worker: int) -> bool:
        """Whether the worker has as many steps scheduled as its shard had in the last epoch."""
        last = self._shards.steps_of_epoch
        return bool(last) and self._scheduled(worker) >= last[worker]

    def _scheduled(self, worker: int) -> int:
        """The number of steps of a worker that are made or in flight."""
        return self._steps[worker] + sum(request.limit for request in self._in_flight[worker])

    def _start(self, worker: int, steps: int) -> None:
        request = Request(
            self._shards.readers[worker],
            self._epoch,
            self._scheduled(worker),
            steps,
            partial(self._execution.make, limit=steps),
            self._results.put,
        )
        self._in_flight[worker].append(request)
        self._requested = max(0, self._requested - steps)
        self._threads[worker].start(request)

    def _is_over(self) -> bool:
        """Whether no worker has data left; gives up workers that are lost for too long."""
        left = self._unfinished()
        if not left:
            return True
        since = [self._threads[worker].lost_since for worker in left]
        patience = self._patience + 4 * self._shards.length.seconds
        is_given_up = self._ended and all(
            lost is not None and self._clock() - lost >= patience for lost in since
        )
        if not is_given_up:
            return False
        threads = [self._threads[worker] for worker in left]
        if new := [str(each.index) for each in threads if each.told_loss != each.lost_since]:
            logging.warning(
                "The epoch ends without the rest of the data of worker %s, which makes no steps. "
                "Later epochs do not wait for it until it returns.",
                ", ".join(new),
            )
        for each in threads:
            each.told_loss = each.lost_since
        self._withdraw_lost()
        self._ended.update(left)
        return True

    def _unfinished(self) -> list[int]:
        return [worker for worker in range(len(self._threads)) if worker not in self._ended]

    def _is_working(self) -> bool:
        """Whether a worker that is not lost has an execution in flight."""
        return any(
            requests and thread.lost_since is None
            for requests, thread in zip(self._in_flight, self._threads, strict=True)
        )

    def _withdraw_lost(self) -> None:
        """Takes the executions of lost workers back; others can make these steps."""
        for worker, thread in enumerate(self._threads):
            if thread.lost_since is not None and self._in_flight[worker]:
                thread.withdraw()
                self._requested += sum(request.limit for request in self._in_flight[worker])
                self._in_flight[worker] = []

    def _take_result(self) -> None:
        """Waits briefly for the result of an execution, and records it."""
        result = self._next_result()
        if result is None or result.request not in self._in_flight[result.worker]:
            return  # It may have been withdrawn a moment before it was reported.
        worker, limit = result.worker, result.request.limit
        self._in_flight[worker].remove(result.request)
        seconds, logs = result.outcome
        self._steps[worker] += result.steps
        self._shards.length.measured(result.steps, seconds.total)
        self._times.add(worker, result.steps, seconds)
        if result.steps or self._shards.logs is None:
            self._shards.set_logs(logs)
        if result.steps < limit:
            self._ended.add(worker)
            # The other workers make the rest of the requested steps.
            self._requested += limit - result.steps
