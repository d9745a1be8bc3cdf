"""`EpochCoordinator`: which calls of Keras go to an epoch, and with how many steps.

TensorFlow's coordinator, which connects to a cluster, is replaced; no step is made.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tests.conftest import keras_is_3
from tfdist.data import sharding
from tfdist.strategies.parameter_server.steps import coordinator as module
from tfdist.strategies.parameter_server.steps.asynchronous_epoch import AsynchronousEpoch
from tfdist.strategies.parameter_server.steps.coordinator import EpochCoordinator
from tfdist.strategies.parameter_server.steps.epoch import Epoch
from tfdist.strategies.parameter_server.steps.shards import PerWorkerShards

pytestmark = pytest.mark.stacks("2.15", "newest")


#: Keras 2 begins the data once before the first epoch, Keras 3 at both ends of an epoch.
FIRST, EACH = (1, 2) if keras_is_3() else (2, 1)


class Scheduled(Epoch):
    """An epoch that records its calls instead of making steps."""

    def __init__(self, shards: PerWorkerShards) -> None:
        super().__init__(shards)
        self.calls: list[Any] = []

    def step(self, fn: Any, steps: int = 1) -> None:
        self.calls.append((fn, steps))

    def newest_logs(self) -> Any:
        return "logs"

    def finish(self, to_end: bool = True) -> None:
        self.calls.append(("finish", to_end))

    def steps_so_far(self) -> int:
        return sum(steps for fn, steps in self.calls if fn != "finish")

    def steps(self) -> list[int]:
        return [3, 4]


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A coordinator of two workers; `of_tensorflow` has the calls that TensorFlow's received."""
    base = tf.distribute.coordinator.ClusterCoordinator
    received: list[Any] = []
    only: list[Any] = []

    def create(cls: type, strategy: Any) -> Any:
        # As TensorFlow's, one for a strategy.
        if not only:
            only.append(object.__new__(cls))
        return only[0]

    def initialize(self: Any, strategy: Any) -> None:
        self._strategy = strategy
        workers = [SimpleNamespace(worker_index=index) for index in (0, 1)]
        self._cluster = SimpleNamespace(workers=workers, stop=lambda: None)
        received.append("created")

    monkeypatch.setattr(base, "__new__", create)
    monkeypatch.setattr(base, "__init__", initialize)
    monkeypatch.setattr(
        base, "schedule", lambda self, fn, args, kwargs: received.append((fn, args))
    )
    monkeypatch.setattr(base, "join", lambda self: received.append("joined"))
    monkeypatch.setattr(module, "WorkerThread", lambda worker, _, **__: worker.worker_index)
    monkeypatch.setattr(module, "Marks", lambda *_: None)
    strategy: Any = SimpleNamespace(workers=[], away=())
    created: Any = EpochCoordinator(strategy)
    created.of_tensorflow = received
    return created


def epoch_of(coordinator: EpochCoordinator, trains: bool = True) -> Scheduled:
    local = tf.data.Dataset.range(1)
    shards = sharding.Shards(local, (lambda: local, lambda: local), trains=trains)
    return Scheduled(PerWorkerShards(shards, 1, lambda: (0, ()), Scheduled))


@tf.function
def train_function(iterator: Any) -> Any:
    return iterator


def test_keras_gets_the_coordinator_of_its_strategy(coordinator: Any) -> None:
    coordinator.before_step = print
    assert EpochCoordinator(coordinator.strategy) is coordinator
    assert coordinator.before_step is print
    assert coordinator.of_tensorflow == ["created"]


def test_only_steps_of_an_epoch_go_to_the_epoch(coordinator: Any) -> None:
    epoch = epoch_of(coordinator)
    coordinator.schedule(len, args=([],))
    coordinator.schedule(len)
    assert coordinator.schedule(train_function, args=(epoch,)).fetch() == "logs"
    assert coordinator.of_tensorflow == ["created", (len, ([],)), (len, None)]
    assert epoch.calls == [(train_function.python_function, 1)]


def test_training_steps_are_announced(coordinator: Any) -> None:
    announced: list[Any] = []
    coordinator.before_step = lambda epoch, steps: announced.append((epoch.steps(), steps))
    coordinator.request(epoch_of(coordinator, trains=False), len, 2)
    coordinator.request(epoch_of(coordinator), len, 2)
    assert announced == [([3, 4], 2)]


def test_the_position_is_that_in_the_epoch_of_keras(coordinator: Any) -> None:
    epoch = epoch_of(coordinator)
    coordinator.start_at(1, (1, 2), reads_on=False)
    coordinator.request(epoch, len, 2)
    assert (epoch.steps(), epoch.position()) == ([3, 4], [4, 6])
    coordinator.join(to_end=False)
    assert epoch.position() == [0, 0]


def test_no_more_steps_are_requested_than_the_user_has_set(coordinator: Any) -> None:
    epoch = epoch_of(coordinator)
    epoch.steps_per_epoch = epoch.steps_left = 5
    for _ in range(3):
        coordinator.request(epoch, len, 2)
    coordinator.join(to_end=False)
    coordinator.request(epoch, len, 2)
    assert epoch.calls == [(len, 2), (len, 2), (len, 1), ("finish", False), (len, 2)]
    assert coordinator.of_tensorflow[-1] == "joined"


def test_the_steps_of_all_epochs_are_counted(coordinator: Any) -> None:
    evaluation, epoch = epoch_of(coordinator, trains=False), epoch_of(coordinator)
    coordinator.request(epoch, len, 3)
    assert coordinator.steps_made == 3
    coordinator.request(epoch, len, 2)
    coordinator.join()
    coordinator.request(evaluation, len, 7)
    coordinator.join()
    assert (coordinator.steps_made, coordinator.training_epoch) == (5, epoch)
    coordinator.request(epoch_of(coordinator), len, 4)
    # Keras 3 joins no epoch that StopIteration has ended.
    coordinator.request(evaluation, len, 7)
    assert (coordinator.steps_made, coordinator.training_epoch.steps_so_far()) == (9, 4)


def test_an_epoch_is_finished_once(coordinator: Any) -> None:
    epoch = epoch_of(coordinator)
    coordinator.request(epoch, len, 1)
    coordinator.join()
    coordinator.join()
    assert epoch.calls == [(len, 1), ("finish", True)]


def test_training_resumes_from_a_position_once(coordinator: Any) -> None:
    local = tf.data.Dataset.range(4)
    shards = sharding.Shards(local, (lambda: local, lambda: local), trains=True)
    dataset = sharding.for_keras(shards, sharding.UNKNOWN)
    assert coordinator.create_per_worker_dataset(dataset).begin_epoch() == (FIRST, [0, 0])
    coordinator.start_at(2, [5, 6], reads_on=True)
    resumed = coordinator.create_per_worker_dataset(dataset)
    assert [resumed.begin_epoch() for _ in range(2)] == [
        (FIRST + 2 * EACH, [5, 6]),
        (FIRST + 3 * EACH, [0, 0]),
    ]
    assert isinstance(iter(resumed), AsynchronousEpoch)
