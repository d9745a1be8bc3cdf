"""Asynchronous epochs whose worker threads are replaced, so that a test decides when they work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data import sharding
from tfdist.strategies.parameter_server.steps.asynchronous_epoch import AsynchronousEpoch
from tfdist.strategies.parameter_server.steps.shards import PerWorkerShards
from tfdist.strategies.parameter_server.steps.timing import Seconds
from tfdist.strategies.parameter_server.steps.worker_thread import Request, Result


class Thread:
    """The thread of a worker; makes executions when asked to.

    Args:
      index: that of the worker.
      batches: those of each shard; all threads share it.

    Attributes:
      stopped: whether it makes no executions until `resume`.
    """

    def __init__(self, index: int, batches: list[int]) -> None:
        self.index, self.batches = index, batches
        self.lost_since: float | None = None
        self.is_leaving = False
        self.stopped = False
        self.requests: list[Request] = []
        self.waiting: list[Request] = []

    @property
    def in_flight(self) -> int:
        return len(self.waiting)

    @property
    def takes_requests(self) -> bool:
        return self.lost_since is None and not self.is_leaving

    def start(self, request: Request) -> None:
        self.requests.append(request)
        self.waiting.append(request)
        if not self.stopped:
            self.resume()

    def resume(self) -> None:
        self.stopped = False
        while self.waiting:
            request = self.waiting.pop(0)
            left = self.batches[request.reader.number] - request.step
            steps = max(0, min(request.limit, left))
            logs = {"loss": np.float64(request.step + steps)}
            seconds = Seconds(0.01 * steps, 0.0, 0.0)
            request.report(Result(self.index, request, steps, (seconds, logs)))

    def withdraw(self) -> bool:
        self.waiting = []
        return True


class Clock:
    """Time that passes only while an epoch waits.

    Attributes:
      hook: called whenever time has passed.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.hook: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.hook()


class Execution:
    def make(self, iterator: Any, limit: int, shard: int) -> Any:
        raise AssertionError("A replaced thread makes no steps.")


class Marks:
    """Counts the steps of shards; a test sets what a lost worker had made."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}

    def begin(self, steps: Sequence[int]) -> None:
        self.steps = dict(enumerate(steps))

    def made(self, shard: int) -> int:
        return self.steps[shard]


class Training:
    """Epochs over shards of some numbers of batches, by default one for each worker."""

    def __init__(
        self,
        clock: Clock,
        *batches: int,
        workers: int | None = None,
        start: tuple[int, tuple[int, ...]] = (0, ()),
    ) -> None:
        self.batches = list(batches)
        count = len(batches) if workers is None else workers
        self.threads = [Thread(index, self.batches) for index in range(count)]
        self._clock = clock
        starts = iter([start])
        local = tf.data.Dataset.range(1)
        makers = tuple(partial(tf.data.Dataset.range, count) for count in batches)
        shards = sharding.Shards(local, makers, trains=True)
        self.marks = Marks()
        marks: Any = self.marks
        self.shards = PerWorkerShards(
            shards, count, lambda: next(starts, (0, ())), self._epoch, marks
        )
        self.shards.always_raises_at_end = False

    def _epoch(self, shards: PerWorkerShards) -> AsynchronousEpoch:
        threads: Any = self.threads
        execution: Any = Execution()
        return AsynchronousEpoch(shards, threads, lambda *_: execution, self._clock)

    def epoch(self) -> AsynchronousEpoch:
        epoch = iter(self.shards)
        assert isinstance(epoch, AsynchronousEpoch)
        return epoch

    def requested(self) -> int:
        return sum(request.limit for thread in self.threads for request in thread.requests)
