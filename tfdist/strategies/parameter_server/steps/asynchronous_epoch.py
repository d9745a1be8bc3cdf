"""One epoch of asynchronous steps: each worker makes steps independently of the others.

The chief hands a worker an execution, which is several steps, because each message costs the chief
some milliseconds. An execution ends early if its shard ends; then the worker takes the next free
shard. If the number of steps is fixed, fast workers make more of them than slow ones.
The shards of a lost worker are read on by those that have nothing else to read, from the step that
it had made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tfdist.strategies.parameter_server.steps.epoch import Epoch
from tfdist.strategies.parameter_server.steps.ledger import Ledger
from tfdist.strategies.parameter_server.steps.marks import Marks
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
      clock: returns seconds.
    """

    def __init__(
        self,
        shards: PerWorkerShards,
        threads: Sequence[WorkerThread],
        execution_of: Callable[[Callable[[Any], Any], Any, Marks | None], Execution],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(shards, threads, clock)
        self._execution_of = execution_of
        self._times = EpochTimes(len(threads), clock)
        self._execution: Execution
        # Steps that Keras has requested and that are in no execution yet.
        self._requested = 0
        # All steps that Keras has requested, and those before a restart.
        self._requested_so_far = 0
        # The request after which Keras 3 must wait for the end of the data; None for any.
        self._expected: int | None = None
        self._ledger = Ledger([0] * len(shards.readers), shards.workers)
        # By worker, the steps that it has made in Keras's epoch, and the executions in flight.
        self._made = self._made_before = [0] * len(threads)
        self._in_flight: list[list[Request]] = [[] for _ in threads]

    def step(self, fn: Callable[[Any], Any], steps: int = 1) -> None:
        self._execution = self._execution_of(fn, self._shards.iterator_spec, self._shards.marks)
        if not self._epoch:
            self._times = EpochTimes(len(self._threads), self._clock)
            self._epoch, steps_before = self._shards.begin_epoch()
            self._ledger = Ledger(steps_before, self._shards.workers)
            if self._shards.marks is not None:
                self._shards.marks.begin(steps_before)
            self._old_steps = self._requested_so_far = self.steps_so_far()
            if self._shards.always_raises_at_end and self._shards.steps_per_epoch is None:
                of_last_epoch = sum(self._shards.steps_of_epoch)
                self._expected = of_last_epoch or self._shards.length_of_first_epoch
        while not self._results.empty():
            self._take_result()
        if self._ledger.is_over:
            self._stop_if_requested()
        self._requested += steps
        self._requested_so_far += steps
        if steps > 1:
            self._shards.length.limit = max(steps, self._shards.length.limit or 0)
        if self._expected is not None and self._requested_so_far > self._expected:
            # Keras 3 shows the number of its requests, and calls callbacks for each of them. So a
            # request beyond the expected length of the epoch waits until a worker has made its
            # step. Any shard may have data left.
            self._requested = max(self._requested, self._ledger.left)
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
        while to_end and not self._ledger.is_over:
            self._schedule(self._shards.length.steps)
        self._finish_requested()
        if to_end:
            self._shards.steps_of_epoch = tuple(self._ledger.steps)

    def measured(self) -> dict[str, float]:
        return self._times.values()

    def steps_by_worker(self) -> dict[str, int]:
        # Keras 3 may begin the next epoch after the callbacks of the last one.
        made = self._made if any(self._made) else self._made_before
        return {f"worker:{index}": steps for index, steps in enumerate(made)}

    def begin_next(self) -> None:
        super().begin_next()
        self._made_before, self._made = self._made, [0] * len(self._threads)

    def steps_so_far(self) -> int:
        return sum(self._ledger.steps)

    def steps(self) -> list[int]:
        self._finish_requested()
        return list(self._ledger.steps)

    def _finish_requested(self) -> None:
        while True:
            if self._requested > 0 and not self._ledger.is_over:
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
        while not self._ledger.is_over:
            if (free := self._free_worker()) is not None:
                self._start(*free, steps)
                return
            self._take_result()

    def _free_worker(self) -> tuple[int, int] | None:
        """The worker and the shard of the next execution; None if all have enough."""
        ahead = max(_EXECUTIONS_AHEAD, _STEPS_AHEAD // self._shards.length.steps)
        free = [
            worker
            for worker, thread in enumerate(self._threads)
            if thread.takes_requests and len(self._in_flight[worker]) < ahead
        ]
        free.sort(key=lambda each: (len(self._in_flight[each]), self._made[each]))
        for worker in free:
            if (shard := self._shard_for(worker)) is not None:
                return worker, shard
        return None

    def _shard_for(self, worker: int) -> int | None:
        """A shard that a worker can read on; None if it must wait for a result."""
        held = self._ledger.held_by(worker)
        for own in held:
            if not self._is_at_its_end(own):
                return own
        # A slow worker should not keep shards that others could begin.
        if len(self._in_flight[worker]) < 2 and (shard := self._lease(worker)) is not None:
            return shard
        # It may be longer than in the last epoch.
        in_flight = {request.reader.number for request in self._in_flight[worker]}
        return next((each for each in held if each not in in_flight), None)

    def _lease(self, worker: int) -> int | None:
        """Gives a worker a free shard, or one of a lost worker; None if there is none."""
        shard = self._ledger.lease(worker)
        if shard is None:
            self._withdraw_lost()
            shard = self._ledger.lease(worker)
        if shard is not None and self._shards.workers[shard] != worker:
            self._shards.workers[shard] = worker
            self._shards.readers[shard] = self._shards.readers[shard].again()
        return shard

    def _is_at_its_end(self, shard: int) -> bool:
        """Whether as many steps of a shard are scheduled as it had in the last epoch."""
        last = self._shards.steps_of_epoch
        return bool(last) and self._scheduled(shard) >= last[shard]

    def _scheduled(self, shard: int) -> int:
        """The number of steps of a shard that are made or in flight."""
        in_flight = [request for requests in self._in_flight for request in requests]
        limits = [each.limit for each in in_flight if each.reader.number == shard]
        return self._ledger.steps[shard] + sum(limits)

    def _start(self, worker: int, shard: int, steps: int) -> None:
        marks = self._shards.marks
        request = Request(
            self._shards.readers[shard],
            self._epoch,
            self._scheduled(shard),
            steps,
            partial(self._execution.make, shard=shard),
            self._results.put,
            made=None if marks is None else partial(marks.made, shard),
        )
        self._in_flight[worker].append(request)
        self._requested = max(0, self._requested - steps)
        self._threads[worker].start(request)

    def _is_working(self) -> bool:
        """Whether a worker that is not lost has an execution in flight."""
        return any(
            requests and thread.lost_since is None
            for requests, thread in zip(self._in_flight, self._threads, strict=True)
        )

    def _withdraw_lost(self) -> None:
        """Takes the shards of lost workers back, and their executions; others make these steps."""
        for worker, thread in enumerate(self._threads):
            if thread.lost_since is None or not thread.withdraw():
                continue
            self._requested += sum(request.limit for request in self._in_flight[worker])
            self._in_flight[worker] = []
            if (marks := self._shards.marks) is not None:
                for shard in self._ledger.held_by(worker):
                    # What it had made and not reported.
                    more = max(0, marks.made(shard) - self._ledger.steps[shard])
                    self._requested -= more
                    self._record(worker, shard, more)
            self._ledger.release(worker)

    def _record(self, worker: int, shard: int, steps: int) -> None:
        self._made[worker] += steps
        self._ledger.steps[shard] += steps

    def _take_result(self) -> None:
        """Waits briefly for the result of an execution, and records it."""
        result = self._next_result()
        if result is None or result.request not in self._in_flight[result.worker]:
            return  # It may have been withdrawn a moment before it was reported.
        worker, limit, reader = result.worker, result.request.limit, result.request.reader
        in_flight = self._in_flight[worker]
        in_flight.remove(result.request)
        self._record(worker, reader.number, result.steps)
        if result.outcome is not None:
            seconds, logs = result.outcome
            self._shards.length.measured(result.steps, seconds.total)
            self._times.add(worker, result.steps, seconds)
            if result.steps or self._shards.logs is None:
                self._shards.set_logs(logs)
        if result.steps < limit:
            self._ledger.end(reader.number)
            # The other shards have the rest of the requested steps.
            self._requested += limit - result.steps
            if reader not in [request.reader for request in in_flight]:
                reader.end()
