"""An execution makes the steps that it may make, in order, and stops at the end of the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.strategies.parameter_server.steps.marks import Marks
from tfdist.strategies.parameter_server.steps.worker_functions import Execution

pytestmark = pytest.mark.stacks("2.15", "newest")


def execution_of(
    step: Callable[[Any], Any], dataset: tf.data.Dataset, marks: Marks | None = None
) -> tuple[Execution, Any]:
    """The execution of a step, and an iterator over a dataset."""
    spec = tf.data.IteratorSpec(dataset.element_spec)
    execution = Execution(tf.distribute.get_strategy(), step, spec, marks, packs=False)
    return execution, iter(dataset)


@pytest.mark.parametrize(("limit", "made", "total"), [(1, 1, 1), (3, 3, 123), (9, 5, 12345)])
def test_a_run_makes_at_most_the_requested_steps(limit: int, made: int, total: int) -> None:
    # The order of the steps is in the digits of the sum.
    digits = tf.Variable(0, dtype=tf.int64)
    execution, iterator = execution_of(
        lambda iterator: {"total": digits.assign(10 * digits + next(iterator))},
        tf.data.Dataset.range(1, 6),
    )

    steps, (seconds, logs) = execution.make(iterator, limit, 0)

    assert steps == made
    assert 0 <= seconds.total < 60
    # A busy machine may take the time at the end of a wait a little late.
    assert 0 <= seconds.input <= seconds.total + 1.0
    assert np.isnan(seconds.communication)
    assert digits == logs["total"] == total
    # The execution has read no example beyond its last step.
    assert [int(example) for example in iterator] == list(range(made + 1, 6))


def test_the_next_run_goes_on_with_the_same_iterator() -> None:
    execution, iterator = execution_of(
        lambda iterator: {"last": next(iterator)}, tf.data.Dataset.range(1, 6)
    )

    found = [execution.make(iterator, 2, 0) for _ in range(4)]

    assert [steps for steps, _ in found] == [2, 2, 1, 0]
    # An execution without data returns zeros.
    assert [logs["last"] for _, (_, logs) in found] == [2, 4, 5, 0]


def test_logs_keep_their_structure_and_types() -> None:
    def step(iterator: Any) -> dict[str, Any]:
        batch = next(iterator)
        mean = tf.constant([[0.5, 2.5]], tf.float64)
        return {"size": tf.size(batch), "all": {"mean": mean}, "any": tf.constant(True)}

    # The last batch is smaller.
    execution, iterator = execution_of(step, tf.data.Dataset.range(5).batch(3))

    steps, (_, logs) = execution.make(iterator, 9, 0)

    assert steps == 2
    assert logs["size"] == 2 and logs["size"].dtype == np.int32
    assert logs["any"] and logs["any"].dtype == bool
    np.testing.assert_array_equal(logs["all"]["mean"], [[0.5, 2.5]], strict=True)


def test_the_steps_of_each_shard_are_counted() -> None:
    marks = Marks(3, "CPU:0")
    marks.begin([5, 0, 0])
    execution, iterator = execution_of(
        lambda iterator: {"last": next(iterator)}, tf.data.Dataset.range(1, 6), marks
    )
    execution.make(iterator, 2, 0)
    execution.make(iterator, 9, 2)
    assert [marks.made(shard) for shard in range(3)] == [7, 0, 3]
    marks.begin([0, 0, 0])
    assert marks.made(0) == 0
