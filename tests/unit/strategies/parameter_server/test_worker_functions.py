"""A run makes the steps that it may make, in order, and stops at the end of the data."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server import worker_functions


@pytest.fixture(autouse=True)
def _is_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_functions, "_this_worker", lambda: tf.constant(3))


@pytest.mark.parametrize(("limit", "made", "total"), [(1, 1, 1), (3, 3, 123), (9, 5, 12345)])
def test_a_run_makes_at_most_the_requested_steps(limit: int, made: int, total: int) -> None:
    # The order of the steps is in the digits of the sum.
    digits = tf.Variable(0, dtype=tf.int64)
    run = worker_functions.run_of(
        lambda iterator: {"total": digits.assign(10 * digits + next(iterator))}, packs=False
    )
    iterator = iter(tf.data.Dataset.range(1, 6))

    (worker, steps, seconds), logs = run(iterator, tf.constant(limit))

    assert (worker, steps) == (3, made)
    assert 0 <= seconds < 60
    assert digits == logs["total"] == total
    # The run has read no example beyond its last step.
    assert [int(example) for example in iterator] == list(range(made + 1, 6))


def test_the_next_run_goes_on_with_the_same_iterator() -> None:
    run = worker_functions.run_of(lambda iterator: {"last": next(iterator)}, packs=False)
    iterator = iter(tf.data.Dataset.range(1, 6))

    found = [run(iterator, tf.constant(2)) for _ in range(4)]

    assert [int(numbers[1]) for numbers, _ in found] == [2, 2, 1, 0]
    # A run without data returns zeros.
    assert [int(logs["last"]) for _, logs in found] == [2, 4, 5, 0]


def test_a_smaller_last_batch_is_a_step() -> None:
    run = worker_functions.run_of(lambda iterator: {"size": tf.size(next(iterator))}, packs=False)
    (_, steps, _), logs = run(iter(tf.data.Dataset.range(5).batch(3)), tf.constant(9))
    assert (steps, logs["size"]) == (2, 2)
