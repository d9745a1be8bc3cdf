"""Synchronous epochs: which gradients an update combines, and what happens if workers are lost.

The threads of the workers and the functions of a step are replaced, so that a test decides which
worker answers when.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.data import sharding
from tfdist.strategies.parameter_server.steps.exchange import Exchange
from tfdist.strategies.parameter_server.steps.shards import PerWorkerShards
from tfdist.strategies.parameter_server.steps.synchronous_epoch import SynchronousEpoch
from tfdist.strategies.parameter_server.steps.synchronous_functions import Synchronous
from tfdist.strategies.parameter_server.steps.worker_thread import Request, Result

pytestmark = pytest.mark.stacks("2.15", "newest")

RECOVERY = 60.0


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


class Thread:
    """The thread of a worker whose shard has a number of batches; answers unless it is stopped."""

    def __init__(self, index: int, batches: int) -> None:
        self.index, self.batches = index, batches
        self.lost_since: float | None = None
        self.stopped = False
        self.waiting: list[Request] = []
        self.steps: list[int] = []
        self.repeats = True

    @property
    def in_flight(self) -> int:
        return len(self.waiting)

    def start(self, request: Request) -> None:
        self.waiting.append(request)
        if not self.stopped:
            self.resume()

    def resume(self) -> None:
        self.stopped = False
        while self.waiting:
            request = self.waiting.pop(0)
            self.steps.append(request.step)
            self.repeats = request.repeats
            steps = int(request.step < self.batches)
            loss = np.float64(10 * self.index + request.step)
            contribution = f"worker {self.index} step {request.step}" if steps else "zeros"
            outcome = {"loss": tf.constant(loss)}, [contribution]
            request.report(Result(self.index, request, steps, outcome))

    def withdraw(self) -> bool:
        if self.lost_since is None:
            return False
        self.waiting = []
        return True


class Functions:
    """Records the updates."""

    is_joint = False

    def __init__(self) -> None:
        self.updates: list[list[str]] = []

    def make(self, iterator: Any) -> Any:
        raise AssertionError("A replaced thread makes no steps.")

    def apply(self, contributions: list[str]) -> None:
        self.updates.append(contributions)

    def metric_results(self) -> dict[str, Any]:
        return {}


class Training:
    """Epochs over shards of some numbers of batches, one for each worker."""

    def __init__(self, clock: Clock, *batches: int, replicas: int | None = None) -> None:
        self._clock = clock
        self.threads = [Thread(index, count) for index, count in enumerate(batches)]
        self.functions = Functions()
        self.synchronous = Synchronous(
            replicas_to_aggregate=replicas or len(batches),
            recovery_timeout=RECOVERY,
            exchange=Exchange(len(batches), ""),
        )
        local = tf.data.Dataset.range(1)
        shards = sharding.Shards(local, tuple(lambda: local for _ in batches), trains=True)
        self.shards = PerWorkerShards(shards, len(self.threads), lambda: (0, ()), self._epoch)

    def _epoch(self, shards: PerWorkerShards) -> SynchronousEpoch:
        threads: Any = self.threads
        functions: Any = self.functions
        return SynchronousEpoch(
            shards, threads, self.synchronous, lambda *_: functions, self._clock
        )

    def epoch(self) -> SynchronousEpoch:
        epoch = iter(self.shards)
        assert isinstance(epoch, SynchronousEpoch)
        return epoch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()

    class Results(queue.SimpleQueue[Result]):
        def get(self, block: bool = True, timeout: float | None = None) -> Result:
            if self.empty():
                clock.now += timeout or 0.0
                clock.hook()
            return super().get(timeout=0)

    monkeypatch.setattr(queue, "SimpleQueue", Results)
    return clock


def step(iterator: Any) -> Any:
    return iterator


def run_to_end(epoch: SynchronousEpoch) -> int:
    for count in range(100):
        try:
            epoch.step(step)
        except StopIteration:
            return count
    raise AssertionError("The epoch does not end.")


def test_an_update_combines_the_step_of_every_shard_in_their_order(clock: Clock) -> None:
    training = Training(clock, 2, 2, 2)
    assert run_to_end(training.epoch()) == 2
    assert training.functions.updates == [
        [f"worker {worker} step {count}" for worker in range(3)] for count in range(2)
    ]
    assert training.shards.steps_of_epoch == (2, 2, 2)


def test_a_shard_that_has_ended_contributes_zeros(clock: Clock) -> None:
    training = Training(clock, 3, 1)
    assert run_to_end(training.epoch()) == 3
    assert training.functions.updates[1:] == [
        ["worker 0 step 1", "zeros"],
        ["worker 0 step 2", "zeros"],
    ]


def test_the_first_gradients_are_taken_and_late_ones_dropped(
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    training = Training(clock, 3, 3, 3, replicas=2)
    late = training.threads[1]
    late.stopped = True
    epoch = training.epoch()
    epoch.step(step)
    assert epoch.steps() == [1, 1, 1]
    assert training.functions.updates == [["worker 0 step 0", "worker 2 step 0"]]
    # It comes late, and continues with the current step.
    late.resume()
    epoch.step(step)
    epoch.finish()
    assert "1 gradients of 2 steps came late and were dropped" in capsys.readouterr().err


def test_too_few_workers_end_the_training_after_the_recovery_timeout(clock: Clock) -> None:
    training = Training(clock, 3, 3)
    lost = training.threads[1]
    lost.stopped, lost.lost_since = True, clock.now
    epoch = training.epoch()
    with pytest.raises(RuntimeError, match="worker:1 did not return within 60 s"):
        epoch.step(step)
    assert RECOVERY <= clock.now < RECOVERY + 5


def test_where_workers_wait_for_each_other_an_ended_shard_joins(clock: Clock) -> None:
    training = Training(clock, 3, 1)
    training.functions.is_joint = True
    epoch = training.epoch()
    assert run_to_end(epoch) == 3
    # The fourth step finds that all shards have ended.
    assert [thread.steps for thread in training.threads] == [[0, 1, 2, 3]] * 2
    assert not any(thread.repeats for thread in training.threads)


def test_a_worker_that_returns_repeats_its_step(clock: Clock) -> None:
    training = Training(clock, 2, 2)
    lost = training.threads[1]
    lost.stopped, lost.lost_since = True, clock.now

    def come_back() -> None:
        if clock.now > RECOVERY / 2:
            lost.lost_since = None
            lost.resume()

    clock.hook = come_back
    assert run_to_end(training.epoch()) == 2
    assert [update[1] for update in training.functions.updates] == [
        "worker 1 step 0",
        "worker 1 step 1",
    ]


def test_the_epoch_ends_without_a_lost_backup_and_withdraws_its_request(clock: Clock) -> None:
    training = Training(clock, 2, 2, 2, replicas=2)
    lost = training.threads[2]
    lost.stopped, lost.lost_since = True, 0.0
    assert run_to_end(training.epoch()) == 2
    assert lost.waiting == []
    assert all("worker 2" not in each for update in training.functions.updates for each in update)


def test_an_error_of_a_step_is_raised(clock: Clock) -> None:
    training = Training(clock, 2)
    thread = training.threads[0]
    thread.stopped = True

    def fail() -> None:
        request = thread.waiting.pop()
        request.report(Result(0, request, error=ValueError("wrong shape")))

    clock.hook = fail
    with pytest.raises(ValueError, match="wrong shape"):
        training.epoch().step(step)
