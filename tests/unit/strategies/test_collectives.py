"""Collective operations over the tasks of a TensorFlow strategy."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.strategies.collectives import PACK_BYTES, TensorFlowCollectives, in_packs

pytestmark = pytest.mark.stacks("2.15", "newest")


def test_sums_of_many_shapes_are_traced_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    collectives = TensorFlowCollectives(tf.distribute.OneDeviceStrategy("CPU:0"), 0)
    # TensorFlow's logger does not pass its messages on.
    tf.get_logger().addHandler(caplog.handler)
    try:
        for size in range(1, 8):
            values = [tf.fill([size], 2.0), tf.ones([], tf.int64)]
            sums = collectives.sum(values)
            assert [value.numpy().tolist() for value in sums] == [[2.0] * size, 1]
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert caplog.messages == []


def test_the_last_gradients_are_sent_first_and_small_ones_together() -> None:
    large, small = PACK_BYTES // 4 + 1, 3
    sent: list[list[int]] = []

    def negated(values: list[tf.Tensor]) -> list[tf.Tensor]:
        sent.append([int(value[0]) for value in values])
        return [-value for value in values]

    sizes = [small, small, large, small, small, large]
    values = [tf.fill([size], float(place)) for place, size in enumerate(sizes)]
    results = in_packs(negated, values)
    assert sent == [[5], [4, 3, 2], [1, 0]]
    assert [int(result[0]) for result in results] == [0, -1, -2, -3, -4, -5]
    assert [len(result) for result in results] == sizes
