"""A run makes the steps that it may make, in order, and stops at the end of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
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
    run = worker_functions.RunOf(
        lambda iterator: {"total": digits.assign(10 * digits + next(iterator))}, packs=False
    )
    iterator = iter(tf.data.Dataset.range(1, 6))

    numbers = run.function(iterator, tf.constant(limit)).numpy()
    worker, steps, seconds, logs = run.unpacked(numbers)

    assert (worker, steps) == (3, made)
    assert 0 <= seconds < 60
    assert digits == logs["total"] == total
    # The run has read no example beyond its last step.
    assert [int(example) for example in iterator] == list(range(made + 1, 6))


def test_the_next_run_goes_on_with_the_same_iterator() -> None:
    run = worker_functions.RunOf(lambda iterator: {"last": next(iterator)}, packs=False)
    iterator = iter(tf.data.Dataset.range(1, 6))

    found = [run.unpacked(run.function(iterator, tf.constant(2)).numpy()) for _ in range(4)]

    assert [steps for _, steps, _, _ in found] == [2, 2, 1, 0]
    # A run without data returns zeros.
    assert [logs["last"] for *_, logs in found] == [2, 4, 5, 0]


def test_logs_keep_their_structure_and_types() -> None:
    def step(iterator: Any) -> dict[str, Any]:
        batch = next(iterator)
        mean = tf.constant([[0.5, 2.5]], tf.float64)
        return {"size": tf.size(batch), "all": {"mean": mean}, "any": tf.constant(True)}

    run = worker_functions.RunOf(step, packs=False)
    # The last batch is smaller.
    iterator = iter(tf.data.Dataset.range(5).batch(3))

    _, steps, _, logs = run.unpacked(run.function(iterator, tf.constant(9)).numpy())

    assert steps == 2
    assert logs["size"] == 2 and logs["size"].dtype == np.int32
    assert logs["any"] and logs["any"].dtype == bool
    np.testing.assert_array_equal(logs["all"]["mean"], [[0.5, 2.5]], strict=True)
