"""Collective operations over the tasks of a TensorFlow strategy."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfdist.strategies.collectives import TensorFlowCollectives

pytestmark = pytest.mark.stacks("2.15", "newest")


def test_sums_of_many_shapes_are_traced_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    collectives = TensorFlowCollectives(tf.distribute.OneDeviceStrategy("CPU:0"), 0, None, 1.0)
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
