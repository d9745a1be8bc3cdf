"""Runs the steps of one worker in a thread, and repeats them if the worker is lost.

    thread = WorkerThread(worker, reconnection.wait_for)
    thread.start(Request(reader, epoch=1, step=0, limit=3, call=call, report=results.put))
    results.get()                                # Result

A `ClusterCoordinator` runs a function on any free worker, but a step needs the worker that reads a
given shard. If the worker is lost, the thread waits until another process has replaced it, and
repeats the steps that are not made with the same batches.
"""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import coordinator_context
from tensorflow.python.eager import context, executor

from tfdist.strategies.parameter_server.steps.shards import ShardReader

_RETRY_SECONDS = 0.1  # after a failure of the connection


@dataclass(frozen=True, eq=False)
class Request:
    """A request for steps on a worker.

    Attributes:
      reader: reads the worker's shard.
      epoch: the number of the iterator over the shard, from 1.
      step: the number of the first of the steps within the epoch.
      limit: the maximum number of steps.
      call: makes the steps; takes the iterator and their maximum number, and returns the number of
        batches that it has read, and anything else.
      report: called in this thread with the result.
      made: returns how many steps of the epoch and the shard are made, after a failure of the
        connection; None if they are not counted.
      repeats: whether the steps are made again after a failure of the connection. Not where the
        workers wait for each other in a step: the others have what this one had sent.
    """

    reader: ShardReader
    epoch: int
    step: int
    limit: int
    call: Callable[[Any, int], tuple[int, Any]]
    report: Callable[[Result], None]
    made: Callable[[], int] | None = None
    repeats: bool = True


@dataclass(frozen=True)
class Result:
    """The result of a `Request`.

    Attributes:
      worker: the index of the worker.
      request: the request.
      steps: the number of steps that are made.
      outcome: what else `Request.call` has returned; None if a worker that was lost has made all.
      error: the exception that ended the steps; None if they succeeded.
    """

    worker: int
    request: Request
    steps: int = 0
    outcome: Any = None
    error: BaseException | None = None


class WorkerThread:
    """The thread of one worker.

    Args:
      worker: the worker of TensorFlow's coordinator.
      wait_for: as `Reconnection.wait_for`.
      is_away: whether the worker has not come yet.

    Attributes:
      index: the index of the worker.
      lost_since: the time since which the worker is away; None while it works.
      is_reconnecting: whether TensorFlow has noticed that, and not yet connected to the process
        that replaces the worker.
      is_leaving: whether it gets no more requests, because it leaves.
    """

    def __init__(
        self, worker: Any, wait_for: Callable[..., None], *, is_away: bool = False
    ) -> None:
        self.index: int = worker.worker_index
        self.lost_since = time.monotonic() if is_away else None
        self.is_reconnecting = is_away
        self.is_leaving = False
        self._worker = worker
        self._wait_for = wait_for
        self._executor = executor.new_executor(enable_async=False)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # The requests that are not reported, the oldest first.
        self._in_flight: list[Request] = []
        # The readers whose datasets are lost with the worker.
        self._readers: weakref.WeakSet[ShardReader] = weakref.WeakSet()
        if is_away:
            self._calls.put(self._be_away)
        name = f"steps-of-worker-{self.index}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    @property
    def in_flight(self) -> int:
        """The number of requests that are not reported."""
        return len(self._in_flight)

    def start(self, request: Request) -> None:
        """Starts a request; its result is reported later."""
        with self._lock:
            self._in_flight.append(request)
        self._calls.put(partial(self._make, request))

    @property
    def takes_requests(self) -> bool:
        """Whether the worker is there, and stays."""
        return self.lost_since is None and not self.is_leaving

    def leave(self, allow: Callable[[], None]) -> None:
        """Allows the worker to leave as soon as it has made its requests, and waits for another."""
        self.is_leaving = True
        self._calls.put(partial(self._be_away, allow))

    def withdraw(self) -> bool:
        """Withdraws the unreported requests of a lost worker: it will not make them again.

        Returns:
          False if the worker is back.
        """
        with self._lock:
            if self.lost_since is None:
                return False
            self._in_flight = []
            return True

    def _work(self) -> None:
        while True:
            self._calls.get()()

    def _make(self, request: Request) -> None:
        try:
            result = self._result(request)
        except BaseException as error:
            request.reader.forget()
            result = Result(self.index, request, error=error)
        with self._lock:
            if result is None or request not in self._in_flight:
                return
            self._in_flight.remove(request)
        request.report(result)

    def _result(self, request: Request) -> Result | None:
        """Makes the steps, again if the worker is lost; None if the request was withdrawn."""
        reader, failed, done = request.reader, False, 0
        self._readers.add(reader)
        while self._goes_on(request):
            with (
                self._worker.failure_handler.wait_on_failure(
                    on_failure_fn=self._on_failure,
                    on_transient_failure_fn=reader.forget,
                    on_recovery_fn=self._on_recovery,
                    worker_device_name=self._worker.device_name,
                ),
                tf.device(self._worker.device_name),
                context.executor_scope(self._executor),
                coordinator_context.with_dispatch_context(self._worker),
            ):
                if failed and request.made is not None:
                    done = min(max(request.made() - request.step, 0), request.limit)
                steps, outcome = 0, None
                if left := request.limit - done:
                    iterator = reader.at(request.epoch, request.step + done)
                    steps, outcome = request.call(iterator, left)
                    reader.advance(steps)
                return Result(self.index, request, done + steps, outcome)
            failed = True  # And that was handled.
            if not request.repeats:
                raise RuntimeError(
                    f"worker:{self.index} was lost in a step in which the workers wait for each "
                    "other (job.gather, or losses with several denominators)"
                )
            # After one of the connection alone, do not retry immediately.
            time.sleep(_RETRY_SECONDS)
        self.lost_since = None  # Another process has replaced the worker in the meantime.
        return None

    def _goes_on(self, request: Request) -> bool:
        """Whether to make the steps of a request, which was not withdrawn while it was lost."""
        with self._lock:
            if request not in self._in_flight:
                return False
            self.lost_since = None
            return True

    def _be_away(self, allow: Callable[[], None] | None = None) -> None:
        if allow is not None and not self.is_leaving:
            return  # It was lost in the meantime.
        self._goes_away(tf.errors.UnavailableError(None, None, f"worker:{self.index} is away"))
        if allow is not None:
            with suppress(tf.errors.OpError):  # It has ended already.
                allow()
        try:
            self._wait_for(self.index, leaves=allow is not None)
        except tf.errors.OpError:
            return  # A ps was lost, as the steps of the others say.
        self._on_recovery()
        self.is_leaving, self.lost_since = False, None

    def _on_failure(self, error: BaseException) -> None:
        self.is_leaving = False
        self._goes_away(error)
        self._wait_for(self.index)

    def _goes_away(self, error: BaseException) -> None:
        self.lost_since = self.lost_since or time.monotonic()
        self.is_reconnecting = True
        for reader in list(self._readers):
            reader.forget()
        # TensorFlow's own thread of this worker creates the other resources again.
        self._worker._on_resource_closure_failure(error)

    def _on_recovery(self) -> None:
        self.is_reconnecting = False
        self._worker._on_worker_recovery()
