"""The thread of a worker: order, failures of the worker, and withdrawn requests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import tensorflow as tf

from tfdist.process.deadline import wait_until
from tfdist.strategies.parameter_server.steps.shards import ShardReader
from tfdist.strategies.parameter_server.steps.worker_thread import Request, Result, WorkerThread

pytestmark = pytest.mark.stacks("2.15", "newest")

SECONDS = 60.0


class LostError(Exception):
    """The worker was lost."""


class Worker:
    """A worker of TensorFlow's coordinator on this process's device, and its failure handler."""

    worker_index = 2
    device_name = "/job:localhost/replica:0/task:0/device:CPU:0"

    def __init__(self) -> None:
        self.failure_handler = self
        self.returns = threading.Event()
        self.returns.set()
        self.failures: list[BaseException] = []

    @contextmanager
    def wait_on_failure(
        self, on_failure_fn: Callable[[Any], None], on_recovery_fn: Callable[[], None], **_: Any
    ) -> Iterator[None]:
        try:
            yield
        except LostError as error:
            on_failure_fn(error)
            assert self.returns.wait(SECONDS)
            on_recovery_fn()

    def _on_worker_recovery(self) -> None:
        pass

    def _on_resource_closure_failure(self, error: BaseException) -> None:
        self.failures.append(error)


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def thread(worker: Worker) -> WorkerThread:
    return WorkerThread(worker, lambda index, **_: None)


@pytest.fixture
def results() -> queue.SimpleQueue[Result]:
    return queue.SimpleQueue()


def reader(examples: int = 9) -> ShardReader:
    dataset = tf.data.Dataset.range(examples)
    return ShardReader(lambda: tf.data.experimental.to_variant(dataset), dataset.element_spec, 0)


def wait(event: threading.Event) -> None:
    assert event.wait(SECONDS)


def taking(before: Callable[[], None] = lambda: None) -> Callable[[Any, int], Any]:
    """Reads batches; returns their number, and the batches."""

    def call(iterator: Any, limit: int) -> tuple[int, list[int]]:
        before()
        taken = [int(batch) for _, batch in zip(range(limit), iterator, strict=False)]
        return len(taken), taken

    return call


def test_requests_are_made_in_order(
    thread: WorkerThread, results: queue.SimpleQueue[Result]
) -> None:
    shard = reader()
    for step in (0, 2, 4):
        thread.start(Request(shard, 1, step, 2, taking(), results.put))
    found = [results.get(timeout=SECONDS) for _ in range(3)]
    assert [result.outcome for result in found] == [[0, 1], [2, 3], [4, 5]]
    assert {result.worker for result in found} == {2}
    assert thread.in_flight == 0 and thread.lost_since is None


def test_a_lost_worker_repeats_the_steps_from_the_same_place(
    worker: Worker, thread: WorkerThread, results: queue.SimpleQueue[Result]
) -> None:
    fails = iter([True, False])

    def lose_once() -> None:
        if next(fails):
            raise LostError

    shard = reader()
    thread.start(Request(shard, 1, 0, 3, taking(), results.put))
    thread.start(Request(shard, 1, 3, 3, taking(lose_once), results.put))
    found = [results.get(timeout=SECONDS) for _ in range(2)]
    assert [result.outcome for result in found] == [[0, 1, 2], [3, 4, 5]]
    assert len(worker.failures) == 1
    assert thread.lost_since is None


def test_a_worker_that_comes_later_gets_requests_then(
    worker: Worker, results: queue.SimpleQueue[Result]
) -> None:
    comes = threading.Event()
    thread = WorkerThread(worker, lambda *_, **__: wait(comes), is_away=True)
    assert thread.is_reconnecting and not thread.takes_requests
    assert thread.withdraw()
    comes.set()
    assert wait_until(lambda: thread.takes_requests, SECONDS, pause=0.01)
    assert not thread.is_reconnecting
    thread.start(Request(reader(), 1, 0, 3, taking(), results.put))
    assert results.get(timeout=SECONDS).outcome == [0, 1, 2]


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_worker_leaves_after_its_requests(
    worker: Worker, results: queue.SimpleQueue[Result], has_ended: bool
) -> None:
    waits: list[tuple[int, bool]] = []
    made: list[int] = []
    goes_on, comes = threading.Event(), threading.Event()

    def wait_for(index: int, *, leaves: bool) -> None:
        waits.append((index, leaves))
        wait(comes)

    def allow() -> None:
        made.append(results.qsize())
        if has_ended:
            raise tf.errors.UnavailableError(None, None, "It has ended.")

    thread = WorkerThread(worker, wait_for)
    shard = reader()
    thread.start(Request(shard, 1, 0, 2, taking(partial(wait, goes_on)), results.put))
    thread.start(Request(shard, 1, 2, 2, taking(), results.put))
    thread.leave(allow)
    assert not thread.takes_requests and thread.lost_since is None
    goes_on.set()
    assert wait_until(lambda: waits == [(2, True)], SECONDS, pause=0.01)
    assert made == [2]
    assert not thread.takes_requests and thread.is_reconnecting
    comes.set()
    assert wait_until(lambda: thread.takes_requests, SECONDS, pause=0.01)


def test_a_worker_that_was_lost_before_it_has_left_is_replaced(
    worker: Worker, results: queue.SimpleQueue[Result]
) -> None:
    fails, leaves = iter([True, False]), threading.Event()

    def lose_once() -> None:
        wait(leaves)
        if next(fails):
            raise LostError

    thread = WorkerThread(worker, lambda index, **_: None)
    shard = reader()
    thread.start(Request(shard, 1, 0, 2, taking(lose_once), results.put))
    thread.leave(lambda: pytest.fail("It has not asked."))
    leaves.set()
    assert results.get(timeout=SECONDS).outcome == [0, 1]
    assert wait_until(lambda: thread.takes_requests, SECONDS, pause=0.01)
    thread.start(Request(shard, 1, 2, 2, taking(), results.put))
    assert results.get(timeout=SECONDS).outcome == [2, 3]


@pytest.mark.parametrize(("made", "read"), [(4, [4, 5]), (3, [3, 4, 5]), (6, None)])
def test_steps_that_a_lost_worker_had_made_are_not_repeated(
    thread: WorkerThread, results: queue.SimpleQueue[Result], made: int, read: list[int] | None
) -> None:
    fails = iter([True, False])

    def lose_once() -> None:
        if next(fails):
            raise LostError

    request = Request(reader(), 1, 3, 3, taking(lose_once), results.put, made=lambda: made)
    thread.start(request)
    result = results.get(timeout=SECONDS)
    assert (result.steps, result.outcome) == (3, read)
    thread.start(Request(request.reader, 1, 6, 2, taking(), results.put))
    assert results.get(timeout=SECONDS).outcome == [6, 7]


def test_a_step_that_others_wait_for_is_not_repeated(
    thread: WorkerThread, results: queue.SimpleQueue[Result]
) -> None:
    """The other workers have taken what this one had sent, and would take it again."""
    fails = iter([True, False])

    def lose_once() -> None:
        if next(fails):
            raise LostError

    thread.start(Request(reader(), 1, 0, 1, taking(lose_once), results.put, repeats=False))
    error = results.get(timeout=SECONDS).error
    assert str(error).startswith("worker:2 was lost in a step in which the workers wait for each")


def test_all_shards_of_a_lost_worker_are_created_again(
    thread: WorkerThread, results: queue.SimpleQueue[Result]
) -> None:
    made: list[int] = []

    def make() -> tf.Tensor:
        made.append(len(made))
        return tf.data.experimental.to_variant(tf.data.Dataset.range(9))

    evaluation = ShardReader(make, tf.TensorSpec([], tf.int64), 0)
    fails = iter([True, False])

    def lose_once() -> None:
        if next(fails):
            raise LostError

    thread.start(Request(evaluation, 1, 0, 1, taking(), results.put))
    thread.start(Request(reader(), 1, 0, 1, taking(lose_once), results.put))
    thread.start(Request(evaluation, 1, 1, 1, taking(), results.put))
    found = [results.get(timeout=SECONDS).outcome for _ in range(3)]
    assert found == [[0], [0], [1]]
    assert made == [0, 1]


def test_the_requests_of_a_worker_that_is_back_cannot_be_withdrawn(
    worker: Worker, thread: WorkerThread, results: queue.SimpleQueue[Result]
) -> None:
    """It makes them again, and no other worker may make them."""
    again, goes_on = threading.Event(), threading.Event()
    fails = iter([True, False])

    def lose_once() -> None:
        if next(fails):
            raise LostError
        again.set()
        assert goes_on.wait(SECONDS)

    thread.start(Request(reader(), 1, 0, 2, taking(lose_once), results.put))
    assert again.wait(SECONDS)
    assert not thread.withdraw()
    goes_on.set()
    assert results.get(timeout=SECONDS).outcome == [0, 1]


def test_another_error_is_reported(
    thread: WorkerThread, results: queue.SimpleQueue[Result]
) -> None:
    def fail() -> None:
        raise ValueError("wrong shape")

    thread.start(Request(reader(), 1, 0, 1, taking(fail), results.put))
    result = results.get(timeout=SECONDS)
    assert isinstance(result.error, ValueError) and result.steps == 0


def test_a_withdrawn_request_of_a_lost_worker_is_not_made(
    worker: Worker, thread: WorkerThread, results: queue.SimpleQueue[Result]
) -> None:
    worker.returns.clear()
    lost = threading.Event()

    def lose() -> None:
        lost.set()
        raise LostError

    shard = reader()
    first = Request(shard, 1, 0, 1, taking(lose), results.put)
    second = Request(shard, 1, 1, 1, taking(), results.put)
    thread.start(first)
    thread.start(second)
    assert lost.wait(SECONDS)
    while not thread.is_reconnecting:
        pass
    assert thread.lost_since is not None
    assert thread.withdraw()
    assert thread.in_flight == 0

    worker.returns.set()
    # The next epoch: the worker is back, and the withdrawn steps are not made.
    thread.start(Request(shard, 2, 0, 2, taking(), results.put))
    assert results.get(timeout=SECONDS).outcome == [0, 1]
    assert results.empty()
    assert thread.lost_since is None and not thread.is_reconnecting
