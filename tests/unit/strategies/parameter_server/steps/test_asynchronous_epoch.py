"""Asynchronous epochs: how many steps each worker makes, and what happens if one is lost.

The threads of the workers are replaced, so that a test decides when and how an execution ends.
"""

from __future__ import annotations

import queue
from typing import Any

import pytest

from tests.support.asynchronous_epochs import Clock, Training
from tfdist.strategies.parameter_server.steps.asynchronous_epoch import AsynchronousEpoch
from tfdist.strategies.parameter_server.steps.worker_thread import Result

pytestmark = pytest.mark.stacks("2.15", "newest")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    # An empty queue of results lets time pass.
    clock = Clock()

    class Results(queue.SimpleQueue[Result]):
        def get(self, block: bool = True, timeout: float | None = None) -> Result:
            if self.empty():
                clock.advance(timeout or 0.0)
            return super().get(timeout=0)

    monkeypatch.setattr(queue, "SimpleQueue", Results)
    return clock


def request_until_stopped(epoch: AsynchronousEpoch, limit: int = 1000) -> int:
    for step in range(limit):
        try:
            epoch.step(step_function)
        except StopIteration:
            return step
    raise AssertionError("The epoch does not end.")


def step_function(iterator: Any) -> Any:
    return iterator


def test_the_first_epoch_ends_when_all_shards_have_ended(clock: Clock) -> None:
    training = Training(clock, 7, 3, 5)
    epoch = training.epoch()
    # Keras learns the number of steps from the end, so it may request more of them.
    assert request_until_stopped(epoch) >= 15
    assert epoch.steps() == [7, 3, 5]
    assert training.shards.steps_of_epoch == (7, 3, 5)
    assert training.shards.logs["loss"] in (7.0, 3.0, 5.0)


def test_a_later_epoch_reads_each_shard_once(clock: Clock) -> None:
    training = Training(clock, 40, 40)
    request_until_stopped(training.epoch())
    for thread in training.threads:
        thread.requests.clear()
    epoch = training.epoch()
    for _ in range(80):
        epoch.step(step_function)
    epoch.finish()
    assert epoch.steps() == [40, 40]
    # Executions are long by now, so few of them find no data.
    assert sum(len(thread.requests) for thread in training.threads) < 20


def test_the_number_of_steps_is_exact_if_the_user_sets_it(clock: Clock) -> None:
    training = Training(clock, 1000, 1000)
    training.shards.steps_per_epoch = 37
    for _ in range(3):
        epoch = training.epoch()
        for _ in range(37):
            epoch.step(step_function)
        epoch.finish()
        assert sum(epoch.steps()) == 37
    assert training.requested() == 3 * 37


def test_other_workers_make_the_steps_that_a_short_shard_has_not(clock: Clock) -> None:
    training = Training(clock, 2, 1000)
    training.shards.steps_per_epoch = 20
    epoch = training.epoch()
    for _ in range(20):
        epoch.step(step_function)
    epoch.finish()
    assert epoch.steps() == [2, 18]


def test_a_fast_worker_makes_the_steps_of_a_slow_one(clock: Clock) -> None:
    training = Training(clock, 1000, 1000)
    training.shards.steps_per_epoch = 100
    slow = training.threads[1]
    slow.stopped = True
    epoch = training.epoch()
    for _ in range(90):
        epoch.step(step_function)
    assert epoch._made[0] > 60
    slow.resume()
    for _ in range(10):
        epoch.step(step_function)
    assert sum(epoch.steps()) == 100


def test_a_resumed_epoch_starts_at_the_steps_of_each_worker(clock: Clock) -> None:
    training = Training(clock, 10, 10, start=(3, (4, 6)))
    epoch = training.epoch()
    request_until_stopped(epoch)
    assert [thread.requests[0].step for thread in training.threads] == [4, 6]
    # Keras 2, for which these shards are, begins the data once before the first epoch.
    assert {request.epoch for thread in training.threads for request in thread.requests} == {5}
    assert epoch.steps() == [10, 10]
    following = training.epoch()
    following.step(step_function)
    assert sum(following.steps()) == 1
    newest = max(
        (request for thread in training.threads for request in thread.requests),
        key=lambda request: request.epoch,
    )
    assert (newest.epoch, newest.step) == (6, 0)


def test_steps_waits_for_what_was_requested_and_for_no_more(clock: Clock) -> None:
    training = Training(clock, 1000, 1000)
    epoch = training.epoch()
    for _ in range(23):
        epoch.step(step_function)
    assert sum(epoch.steps()) == 23


def test_the_other_workers_make_the_steps_of_a_lost_one(clock: Clock) -> None:
    training = Training(clock, 1000, 1000)
    training.shards.steps_per_epoch = 50
    lost = training.threads[1]
    lost.stopped = True
    epoch = training.epoch()
    for step in range(50):
        if step == 10:
            lost.lost_since = clock.now
        epoch.step(step_function)
    epoch.finish()
    assert sum(epoch.steps()) == 50
    assert clock.now == 0.0  # The epoch has not waited.
    assert lost.waiting == []


def test_another_worker_reads_the_rest_of_the_shard_of_a_lost_one(clock: Clock) -> None:
    training = Training(clock, 20, 20)
    request_until_stopped(training.epoch())
    lost = training.threads[1]
    lost.stopped = True
    epoch = training.epoch()
    requested = 0
    while not lost.waiting:
        epoch.step(step_function)
        requested += 1
    lost.lost_since = clock.now
    training.marks.steps[1] = 2  # It had made two steps, and reported none of them.
    for thread in training.threads:
        thread.requests.clear()
    for _ in range(40 - requested):
        epoch.step(step_function)
    epoch.finish()
    assert epoch.steps() == [20, 20]
    epoch.begin_next()
    assert epoch.steps_by_worker() == {"worker:0": 38, "worker:1": 2}
    rest = [each.step for each in training.threads[0].requests if each.reader.number == 1]
    assert rest[0] == 2
    # The worker comes back. The other one has the dataset of this shard by now.
    lost.lost_since, lost.stopped = None, False
    following = training.epoch()
    for _ in range(40):
        following.step(step_function)
    following.finish()
    assert following.steps() == [20, 20]
    assert following._made[1] > 0


def test_a_worker_that_leaves_makes_what_it_has_and_no_more(clock: Clock) -> None:
    training = Training(clock, 20, 20)
    request_until_stopped(training.epoch())
    leaving = training.threads[1]
    leaving.stopped = True
    epoch = training.epoch()
    requested = 0
    while not leaving.waiting:
        epoch.step(step_function)
        requested += 1
    leaving.is_leaving = True
    in_flight, all_requests = len(leaving.waiting), len(leaving.requests)

    def leave() -> None:
        leaving.resume()
        leaving.lost_since = clock.now

    clock.hook = leave
    for _ in range(40 - requested):
        epoch.step(step_function)
    epoch.finish()
    assert epoch.steps() == [20, 20]
    assert len(leaving.requests) == all_requests
    made = sum(request.limit for request in leaving.requests[-in_flight:])
    epoch.begin_next()
    assert epoch.steps_by_worker() == {"worker:0": 40 - made, "worker:1": made}


def test_an_epoch_waits_while_all_workers_are_lost(clock: Clock) -> None:
    training = Training(clock, 20, 20)
    epoch = training.epoch()
    for thread in training.threads:
        thread.stopped = True
    epoch.step(step_function)
    for thread in training.threads:
        thread.lost_since = clock.now

    def come_back() -> None:
        if clock.now > 100:
            for thread in training.threads:
                thread.lost_since, thread.stopped = None, False

    clock.hook = come_back
    request_until_stopped(epoch)
    assert epoch.steps() == [20, 20]


def test_workers_take_one_shard_after_another_and_a_slow_one_takes_few(clock: Clock) -> None:
    training = Training(clock, *[10] * 12, workers=3)
    slow = training.threads[0]
    for number in range(3):
        slow.stopped = True
        epoch = training.epoch()
        for _ in range(90):
            epoch.step(step_function)
        assert epoch._made[0] == 0
        assert len({request.reader.number for request in slow.waiting}) in (1, 2)
        slow.resume()
        if number == 0:
            request_until_stopped(epoch)
        else:
            for _ in range(30):
                epoch.step(step_function)
            epoch.finish()
        assert epoch.steps() == [10] * 12
        assert sum(epoch._made) == 120


def test_a_worker_has_one_shard_open_and_keeps_the_datasets_of_its_shards(clock: Clock) -> None:
    training = Training(clock, *[10] * 6, workers=2)
    request_until_stopped(training.epoch())
    readers, workers = list(training.shards.readers), list(training.shards.workers)
    assert sorted(workers) == [0, 0, 0, 1, 1, 1]
    epoch = training.epoch()
    for _ in range(60):
        epoch.step(step_function)
    epoch.finish()
    assert training.shards.readers == readers and training.shards.workers == workers


def test_a_resumed_epoch_does_not_read_what_was_read(clock: Clock) -> None:
    training = Training(clock, 5, 5, 5, 5, workers=2, start=(0, (5, 3, 0, 5)))
    epoch = training.epoch()
    request_until_stopped(epoch)
    assert epoch.steps() == [5] * 4
    assert epoch.new_steps == 7


def test_an_error_of_a_step_is_raised(clock: Clock) -> None:
    training = Training(clock, 1000)
    thread = training.threads[0]
    thread.stopped = True
    epoch = training.epoch()
    epoch.step(step_function)
    request = thread.waiting.pop()
    request.report(Result(0, request, error=ValueError("wrong shape")))
    with pytest.raises(ValueError, match="wrong shape"):
        epoch.step(step_function)


def test_an_empty_shard_makes_no_step(clock: Clock) -> None:
    training = Training(clock, 0, 4)
    epoch = training.epoch()
    request_until_stopped(epoch)
    assert epoch.steps() == [0, 4]


@pytest.mark.parametrize("batches", [(20, 20), (0, 7), (3, 50)])
@pytest.mark.parametrize("knows_length", [True, False])
def test_keras_3_makes_as_many_requests_as_steps(
    clock: Clock, batches: tuple[int, ...], knows_length: bool
) -> None:
    training = Training(clock, *batches)
    training.shards.always_raises_at_end = True
    if not knows_length:
        # Then from the second epoch.
        vars(training.shards)["length_of_first_epoch"] = None
        assert request_until_stopped(training.epoch()) >= sum(batches)
    for _ in range(3):
        assert request_until_stopped(training.epoch()) == sum(batches)
        assert training.shards.steps_of_epoch == batches


def test_data_that_has_become_longer_is_read_to_its_end(clock: Clock) -> None:
    training = Training(clock, 4, 4)
    training.shards.always_raises_at_end = True
    request_until_stopped(training.epoch())
    training.batches[1] = 9
    assert request_until_stopped(training.epoch()) == 13


def test_the_last_of_several_steps_per_request_may_be_missing(clock: Clock) -> None:
    training = Training(clock, 5, 5)
    training.shards.always_raises_at_end = True
    request_until_stopped(training.epoch())
    epoch = training.epoch()
    for _ in range(4):
        epoch.step(step_function, 3)
    with pytest.raises(StopIteration):
        epoch.step(step_function, 3)
    assert epoch.steps() == [5, 5]


def test_the_seconds_of_the_steps_are_known_after_the_first_one(clock: Clock) -> None:
    epoch = Training(clock, 7, 3).epoch()
    # A checkpoint of a preempted job may ask before.
    assert epoch.measured() == {}
    # Keras may create an epoch long before its first step.
    clock.advance(100.0)
    epoch.step(step_function)
    clock.advance(1.0)
    epoch.step(step_function)
    assert epoch.steps() == [1, 1]
    measured = epoch.measured()
    assert measured["seconds/step"] == pytest.approx(0.01)
    # In the hundredth of a second of each step, the other worker makes a hundredth of one.
    assert measured["staleness/mean"] == pytest.approx(0.01)
