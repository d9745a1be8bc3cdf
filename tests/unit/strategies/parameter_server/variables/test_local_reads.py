"""The weights that a step of several batches reads once."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.python.distribute.ps_values import CachingVariable

from tfdist.strategies.parameter_server.variables.local_reads import reading_once

pytestmark = pytest.mark.stacks("2.15", "newest")


def test_a_loop_reads_each_weight_where_the_step_begins() -> None:
    # The class of variables on parameter servers.
    kernel = CachingVariable(tf.Variable([[2.0, 3.0]]))
    plain = tf.Variable([5.0])
    read: list[str] = []

    def batch(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((x @ kernel) * plain) + tf.reduce_sum(kernel.read_value())
        read.extend(
            each.type
            for each in tf.compat.v1.get_default_graph().get_operations()
            if each.type == "ReadVariableOp"
        )
        return tape.gradient(loss, [kernel, plain])

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with reading_once([kernel, plain]):
            return tf.function(batch)(x)

    of_kernel, of_plain = step(tf.constant([[7.0]]))
    # `read_value` always reads.
    assert read == ["ReadVariableOp"]
    assert of_kernel.numpy().tolist() == [[36.0, 36.0]]
    assert of_plain.numpy().tolist() == [35.0]
    read.clear()
    tf.function(batch)(tf.constant([[7.0]]))
    assert len(read) == 3
