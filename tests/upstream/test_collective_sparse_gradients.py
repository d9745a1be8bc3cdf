"""Sparse gradients are summed over replicas with few bytes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat.gradients import distinct
from tfdist.strategies.replicas import collective_sparse_gradients
from tfdist.strategies.replicas.collective_sparse_gradients import (
    gathered,
    rows_or_table,
    with_small_tables,
)

pytestmark = [pytest.mark.stacks("2.15", "2.21"), pytest.mark.timeout(120)]

# In a new process, which has three devices.
SUMS = """
import tensorflow as tf

cpu, replicas = tf.config.list_physical_devices("CPU")[0], 3
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
{fix}
strategy = tf.distribute.MirroredStrategy([f"CPU:{{place}}" for place in range(replicas)])

@tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
def summed(rows):
    def in_replica():
        replica = tf.distribute.get_replica_context()
        rows_ = rows + tf.cast(replica.replica_id_in_sync_group, tf.int64)
        values = tf.ones([tf.size(rows), 2])
        return replica.all_reduce("sum", tf.IndexedSlices(values, rows_, tf.constant([6, 2])))
    return strategy.experimental_local_results(strategy.run(in_replica))[0]

for rows in ([1, 1], [0, 1, 2, 3]):
    found = summed(tf.constant(rows, tf.int64))
    print(*found.indices.numpy(), "|", *tf.convert_to_tensor(found)[:, 0].numpy(), "|")
"""
FIX = (
    "from tfdist.strategies.replicas import collective_sparse_gradients as f; f.apply(); f.apply()"
)


def run(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return [part.strip() for part in done.stdout.split("|") if part.strip()]


def test_replicas_send_a_row_as_often_as_they_have_it() -> None:
    few, many = "0.0 2.0 2.0 2.0 0.0 0.0", "1.0 2.0 3.0 3.0 2.0 1.0"
    gathered_by_tensorflow = ["1 1 2 2 3 3", few, "0 1 2 3 1 2 3 4 2 3 4 5", many]
    assert run(SUMS.format(fix="")) == gathered_by_tensorflow
    # The 12 rows of three replicas are as many as those of two tables.
    assert run(SUMS.format(fix=FIX)) == ["1 2 3", few, "0 1 2 3 4 5", many]


def slices(rows: Any, shape: list[int], dtype: Any = "float32", index: Any = "int64") -> Any:
    """A gradient of a table of a shape, with a row for each index."""
    values = np.arange(len(rows) * int(np.prod(shape[1:])), dtype="float32") - 2.0
    return tf.IndexedSlices(
        tf.cast(tf.reshape(values, [len(rows), *shape[1:]]), dtype),
        tf.constant(rows, index),
        tf.constant(shape),
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("shape", [[9], [9, 1], [9, 3], [9, 2, 3]])
def test_rows_are_gathered_in_one_operation(dtype: str, index: str, shape: list[int]) -> None:
    own, other, none = (slices(rows, shape, dtype, index) for rows in ([5, 2], [2], []))
    sent: list[tf.Tensor] = []

    def send(part: tf.Tensor) -> tf.Tensor:
        sent.append(part)
        return part

    for gradient in (own, other, none):
        gathered(gradient, tf.constant(4), send)
    assert [len(part) for part in sent] == [4, 4, 4]

    found = gathered(own, tf.constant(4), lambda _: tf.concat(sent, 0))

    assert found.indices.dtype == index and found.indices.numpy().tolist() == [5, 2, 2]
    expected = tf.concat([own.values, other.values], 0)
    assert found.values.dtype == dtype
    np.testing.assert_array_equal(tf.cast(found.values, "float32"), tf.cast(expected, "float32"))


def test_equal_rows_become_one() -> None:
    gradient = slices([5, 2, 5], [9, 2])
    found = distinct(gradient)
    assert found.indices.numpy().tolist() == [5, 2]
    assert found.values.numpy().tolist() == [[0.0, 2.0], [0.0, 1.0]]
    assert distinct(slices([], [9, 2])).values.shape == (0, 2)


@pytest.mark.parametrize(("rows", "way"), [(17, "rows"), (18, "table")])
def test_more_rows_than_two_tables_are_sent_as_a_table(rows: int, way: str) -> None:
    gradient = slices([5, 2], [9, 2])
    ways: list[str] = []

    def gather() -> tf.IndexedSlices:
        ways.append("rows")
        return gradient

    def reduce(table: tf.Tensor) -> tf.Tensor:
        ways.append("table")
        return 2 * table

    found = rows_or_table(gradient, tf.constant(rows), gather=gather, reduce=reduce)

    assert ways == [way]
    if way == "table":
        assert found.indices.numpy().tolist() == [2, 5]
        assert found.values.numpy().tolist() == [[0.0, 2.0], [-4.0, -2.0]]


def test_only_small_tables_are_sent_with_the_dense_gradients() -> None:
    small, large = slices([1, 1], [64, 256]), slices([1], [65, 256])
    dense = tf.ones([2])
    received: list[Any] = []

    def reduce(gradients: list[Any]) -> list[Any]:
        received.extend(gradients)
        return [None if each is None else tf.math.scalar_mul(3.0, each) for each in gradients]

    gradients = [small, None, dense, large]
    variables = [tf.zeros([64, 256]), tf.zeros([2]), tf.zeros([2]), tf.zeros([65, 256])]
    found = with_small_tables(gradients, variables, reduce)

    assert received[0].shape == (64, 257)
    assert [type(each) for each in received[1:]] == [type(each) for each in gradients[1:]]
    assert found[1] is None
    for each, gradient in zip(found, gradients, strict=True):
        if gradient is not None:
            np.testing.assert_array_equal(
                tf.convert_to_tensor(each), 3.0 * tf.convert_to_tensor(gradient)
            )
    assert found[0].indices.numpy().tolist() == [1]


def test_the_class_of_tensorflow_is_changed_once() -> None:
    collective_sparse_gradients.apply()
    launcher = collective_sparse_gradients.CollectiveReplicaLauncher
    changed = launcher.all_reduce_indexed_slices
    collective_sparse_gradients.apply()
    assert launcher.all_reduce_indexed_slices is changed
