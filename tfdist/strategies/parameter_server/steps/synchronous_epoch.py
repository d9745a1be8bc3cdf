"""Synchronous training under the parameter-server strategy: each update combines all shards.

    exchange = Exchange(num_workers=2, device="/job:ps/replica:0/task:0/device:CPU:0")
    synchronous = Synchronous(replicas_to_aggregate=2, recovery_timeout=300.0, exchange=exchange)
    synchronous.recorder.wrap(optimizer)
    functions_of = partial(Functions, strategy, synchronous, packs=True)
    epoch = SynchronousEpoch(per_worker_shards, threads, synchronous, functions_of)
    epoch.step(train_function)                   # StopIteration at the end of the first epoch

In step s every worker computes its gradients for batch s of its shard. The update averages the
first `replicas_to_aggregate` of them, in the order of the shards, and drops the others (backup
workers: Chen et al. 2016, "Revisiting Distributed Synchronous SGD", arXiv:1604.00981). A shard that
has ended contributes zeros.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.errors import log
from tfdist.strategies.parameter_server.steps.epoch import Epoch
from tfdist.strategies.parameter_server.steps.shards import PerWorkerShards
from tfdist.strategies.parameter_server.steps.synchronous_functions import Functions, Synchronous
from tfdist.strategies.parameter_server.steps.worker_thread import Request, Result, WorkerThread

_LOGS_SECONDS = 0.5  # between two reads of the logs for Keras 3's progress bar


class SynchronousEpoch(Epoch):
    """One epoch of synchronous steps.

    Args:
      shards: the shards.
      threads: the thread of each worker.
      synchronous: what the epochs share.
      functions_of: returns the functions of a step; see `synchronous_functions.Functions`.
      clock: returns seconds.
    """

    def __init__(
        self,
        shards: PerWorkerShards,
        threads: Sequence[WorkerThread],
        synchronous: Synchronous,
        functions_of: Callable[[Callable[[Any], Any], Any], Functions],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(shards, threads, clock)
        self._synchronous = synchronous
        self._functions_of = functions_of
        self._functions: Functions
        # The number of the next step, or of the step in flight.
        self._step = 0
        self._is_in_flight = False
        self._has_ended = False
        # By worker, the contributions of the step in flight.
        self._arrived: dict[int, Result] = {}
        # By worker, the result of the step that found no more data.
        self._exhausted: dict[int, Result] = {}
        self._dropped = 0
        self._newest: Result | None = None
        self._logs_read = -math.inf

    def step(self, fn: Callable[[Any], Any], steps: int = 1) -> None:
        """As the base class; the last of the steps may still be in flight.

        Raises:
          StopIteration: the data has ended.
          RuntimeError: fewer workers are left than an update needs, and do not return; or one has
            returned, but its step cannot be repeated.
        """
        self._functions = self._functions_of(fn, self._shards.iterator_spec)
        if not self._epoch:
            self._epoch, steps_of_workers = self._shards.begin_epoch()
            self._old_steps = self._step = max(steps_of_workers)
        for count in range(steps):
            self._complete()
            if not self._has_ended:
                self._begin()
                if self._step >= self._known_steps():
                    # This may be the end, which Keras needs to know exactly.
                    self._complete()
            if self._has_ended:
                if count == 0:
                    self._stop_if_requested()
                break

    def live_logs(self) -> dict[str, Any]:
        if self._newest is None:
            self._complete()
        if self._clock() - self._logs_read >= _LOGS_SECONDS:
            self.newest_logs()
        return self._shards.live_logs

    def finish(self, to_end: bool = True) -> None:
        self._complete()
        if to_end and self._shards.runs_to_end and self._epoch:
            while not self._has_ended:
                self._begin()
                self._complete()
            self._shards.steps_of_epoch = tuple(self.steps())
        self._wait_for_late_workers()
        if self._newest is not None:
            self._read_logs(self._functions.metric_results())
            self._newest = None  # `newest_logs` leaves these as they are.
        if self._dropped:
            log(
                f"{self._dropped} gradients of {self._step} steps came late and were dropped "
                f"(--replicas_to_aggregate={self._synchronous.replicas_to_aggregate})"
            )
            self._dropped = 0

    def steps_so_far(self) -> int:
        return self._step

    def steps(self) -> list[int]:
        """For each worker, the number of steps of this epoch; waits for the step in flight."""
        self._complete()
        return [self._step] * len(self._threads)

    def newest_logs(self) -> Any:
        self._read_logs({})
        return self._shards.logs

    def _read_logs(self, results: dict[str, Any]) -> None:
        """Reads the logs of the newest step.

        Args:
          results: the results of metrics over all steps, in place of those of this step.
        """
        if self._newest is None:
            return
        self._logs_read = self._clock()
        logs, _ = self._newest.outcome
        try:
            read = tf.nest.map_structure(lambda tensor: tensor.numpy(), logs)
        except tf.errors.OpError:
            # The worker was lost after its step.
            read = self._shards.logs or results
        if isinstance(read, dict):
            read = {name: results.get(name, value) for name, value in read.items()}
        self._shards.set_logs(read)

    def _known_steps(self) -> float:
        """The number of steps that certainly have data; infinite with `steps_per_epoch`."""
        if self._shards.steps_per_epoch is not None:
            return math.inf
        return max(self._shards.steps_of_epoch, default=0)

    def _begin(self) -> None:
        self._is_in_flight = True
        self._arrived = {} if self._functions.is_joint else dict(self._exhausted)
        for thread in self._threads:
            self._start(thread)

    def _start(self, thread: WorkerThread) -> None:
        if thread.in_flight or thread.index in self._arrived:
            return
        functions, report = self._functions, self._results.put

        def make(iterator: Any, _: int) -> tuple[int, Any]:
            return functions.make(iterator)

        reader, repeats = self._shards.readers[thread.index], not functions.is_joint
        thread.start(Request(reader, self._epoch, self._step, 1, make, report, repeats=repeats))

    def _complete(self) -> None:
        """Waits for enough gradients of the step in flight, and updates the weights."""
        if not self._is_in_flight:
            return
        while not self._is_complete():
            self._take_result()
        self._is_in_flight = False
        with_data = [result for result in self._arrived.values() if result.steps]
        if not with_data:
            self._has_ended = True
            return
        without = [result for result in self._arrived.values() if not result.steps]
        chosen = (with_data + without)[: self._synchronous.replicas_to_aggregate]
        chosen.sort(key=lambda result: result.worker)
        self._functions.apply([tensor for result in chosen for tensor in result.outcome[1]])
        self._newest = next(result for result in chosen if result.steps)
        self._dropped += len(with_data) - sum(result.steps for result in chosen)
        self._step += 1

    def _is_complete(self) -> bool:
        needed = self._synchronous.replicas_to_aggregate
        if len(self._arrived) < needed:
            return False
        if any(result.steps for result in self._arrived.values()):
            return True
        # Only the end of all shards is the end of the epoch.
        return all(
            thread.index in self._arrived or thread.lost_since is not None
            for thread in self._threads
        )

    def _take_result(self) -> None:
        result = self._next_result()
        if result is None:
            self._check_lost()
            return
        if not result.steps:
            self._exhausted[result.worker] = result
        is_current = result.request.step == self._step and self._is_in_flight
        if is_current or not result.steps:
            self._arrived[result.worker] = result
        else:
            self._dropped += 1
            if self._is_in_flight:
                self._start(self._threads[result.worker])

    def _check_lost(self) -> None:
        lost = {
            thread.index: thread.lost_since
            for thread in self._threads
            if thread.lost_since is not None
        }
        needed, limit = self._synchronous.replicas_to_aggregate, self._synchronous.recovery_timeout
        if len(self._threads) - len(lost) >= needed:
            return
        if self._clock() - min(lost.values()) >= limit:
            names = " and ".join(f"worker:{worker}" for worker in sorted(lost))
            raise RuntimeError(
                f"{names} did not return within {limit:g} s (--startup_timeout), and each update "
                f"needs the gradients of {needed} workers (--replicas_to_aggregate)"
            )

    def _wait_for_late_workers(self) -> None:
        """Waits for the workers that still compute, because their steps update the metrics."""
        while not all(not thread.in_flight or thread.withdraw() for thread in self._threads):
            self._take_result()
