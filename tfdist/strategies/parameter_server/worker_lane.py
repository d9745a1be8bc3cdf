"""Runs the steps of one worker in a thread of its own, and repeats those that the worker lost.

    lane = Lane(worker, make_dataset, iterator_spec)
    lane.start(Request(step=0, iterator=1, function=function, report=results.put))
    results.get()                                # Result

A `ClusterCoordinator` runs a function on any free worker. A synchronous step needs the worker that
reads a given shard. If the worker is lost, the lane waits until another process has replaced it,
creates the shard again, skips what has been read, and repeats the step with the same batch.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import coordinator_context
from tensorflow.python.eager import context, executor

_RETRY_SECONDS = 0.1  # after a failure of the connection


@dataclass(frozen=True)
class Request:
    """A step for a worker.

    Attributes:
      step: the number of the step within the epoch, which is that of its batch within the shard.
      iterator: the number of the iterator over the shard, from 1; each one shuffles again.
      function: the concrete function of the step: takes an iterator and returns whether there was
        data, bool, shape [], the logs, and the contribution.
      report: called in the lane's thread with the result.
    """

    step: int
    iterator: int
    function: Any
    report: Callable[[Result], None]


@dataclass(frozen=True)
class Result:
    """The result of a `Request`.

    Attributes:
      worker: the index of the worker.
      step: the number of the step.
      had_data: whether the shard had a batch.
      logs: tensors on the worker.
      contribution: tensors on the ps.
      error: the exception that ended the step; None if it succeeded.
    """

    worker: int
    step: int
    had_data: bool = False
    logs: Any = None
    contribution: Any = None
    error: BaseException | None = None


class Lane:
    """The thread of one worker.

    Args:
      worker: the worker of TensorFlow's coordinator.
      make_dataset: creates the worker's shard, on the device of the caller.
      iterator_spec: the `tf.TypeSpec` of the iterators over the shard.

    Attributes:
      is_busy: whether a request has not been reported.
      lost_since: the time at which the worker was lost; None while it works.
    """

    def __init__(self, worker: Any, make_dataset: Callable[[], Any], iterator_spec: Any) -> None:
        self.index: int = worker.worker_index
        self.is_busy = False
        self.lost_since: float | None = None
        self._worker = worker
        self._make_dataset = make_dataset
        self._skip = _skip.get_concrete_function(iterator_spec, tf.TensorSpec([], tf.int64))
        self._executor = executor.new_executor(enable_async=False)
        self._dataset: Any = None
        self._iterator: Any = None
        self._iterators = 0  # created over the dataset
        self._position = 0  # batches that the iterator has returned
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        name = f"lane-of-worker-{self.index}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def start(self, request: Request) -> None:
        """Starts a request; its result is reported later."""
        self.is_busy = True
        self._requests.put(request)

    def close(self) -> None:
        """Ends the thread after the requests that it has."""
        self._requests.put(None)

    def _work(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                result = self._result(request)
            except BaseException as error:
                self._forget()
                result = Result(self.index, request.step, error=error)
            self.is_busy = False
            request.report(result)
            del request, result

    def _result(self, request: Request) -> Result:
        while True:
            with self._worker.failure_handler.wait_on_failure(
                on_failure_fn=self._on_failure,
                on_transient_failure_fn=self._forget,
                on_recovery_fn=self._worker._on_worker_recovery,
                worker_device_name=self._worker.device_name,
            ):
                return self._attempt(request)
            # The failure was handled. After one of the connection alone, do not retry immediately.
            time.sleep(_RETRY_SECONDS)

    def _attempt(self, request: Request) -> Result:
        with (
            tf.device(self._worker.device_name),
            context.executor_scope(self._executor),
            coordinator_context.with_dispatch_context(self._worker),
        ):
            self._move_to(request)
            had_data, logs, contribution = request.function(self._iterator)
            had_data = bool(had_data.numpy())
            self._position += 1
        self.lost_since = None
        return Result(self.index, request.step, had_data, logs, contribution)

    def _move_to(self, request: Request) -> None:
        """Makes the step's batch the next one of the iterator."""
        if self._iterators > request.iterator:
            self._forget()
        if self._dataset is None:
            self._dataset = self._make_dataset()
        while self._iterators < request.iterator:
            self._iterator = iter(self._dataset)
            self._iterators += 1
            self._position = 0
        if self._position < request.step:
            self._skip(self._iterator, tf.constant(request.step - self._position, tf.int64))
            self._position = request.step

    def _on_failure(self, error: BaseException) -> None:
        self.lost_since = self.lost_since or time.monotonic()
        self._forget()
        # TensorFlow's own thread of this worker creates the other resources again.
        self._worker._on_resource_closure_failure(error)

    def _forget(self) -> None:
        """Forgets the iterator, whose position is unknown, and its shuffle order."""
        self._dataset = self._iterator = None
        self._iterators = self._position = 0


@tf.function
def _skip(iterator: Any, count: tf.Tensor) -> tf.Tensor:
    for _ in tf.range(count):
        iterator.get_next_as_optional()
    return count
