"""Sums the sparse gradients of replicas with as few bytes and collective operations as possible.

apply()     # before TensorFlow builds a graph with collective operations
sums = with_small_tables(gradients, variables, reduce)

TensorFlow and Horovod gather all rows of all replicas, including repeated ones, even where the
gradient of the whole table is smaller. Here, a replica first sums its rows of the
same index. The replicas then gather rows, or sum tables, whichever sends fewer bytes. The result
has only the rows that a replica has, as an optimizer may treat other rows in a special way.

In a graph of TensorFlow 1 (Estimators), a collective operation must have the same shape in each
step: it has one key for all steps, and TensorFlow keeps the shape with the key. TensorFlow pads the
rows to the same length in all replicas, but to another one in each step. There, a gradient whose
number of rows is unknown is made dense.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher

from tfdist.compat.gradients import distinct
from tfdist.upstream.wrapping import apply_wrapper

# Up to so many bytes, the time of another collective operation is more than that of the bytes.
_SMALL_TABLE = 65536


def apply() -> None:
    """Changes TensorFlow's class; a second call changes nothing."""
    apply_wrapper(CollectiveReplicaLauncher, "all_reduce_indexed_slices", _all_reduce)


def _all_reduce(
    gather: Callable[..., Any], launcher: Any, gradient: tf.IndexedSlices, options: Any = None
) -> tf.IndexedSlices:
    in_graph_of_tf1 = not tf.compat.v1.executing_eagerly_outside_functions()
    is_static = gradient.values.shape[0] is not None
    if gradient.dense_shape is None or (in_graph_of_tf1 and is_static):
        return gather(launcher, gradient, options)
    if in_graph_of_tf1:
        total = launcher.all_reduce(tf.convert_to_tensor(gradient), options=options)
        rows = tf.range(tf.shape(total, gradient.indices.dtype)[0])
        return tf.IndexedSlices(total, rows, gradient.dense_shape)
    return _sum(launcher, distinct(gradient), options)


def with_small_tables(
    gradients: Sequence[Any], variables: Sequence[Any], reduce: Callable[[list[Any]], Sequence[Any]]
) -> list[Any]:
    """Reduces gradients over all replicas; sends sparse gradients of small tables as dense ones.

    Args:
      gradients: tensors, `tf.IndexedSlices`, or None.
      variables: their variables.
      reduce: reduces a list of gradients, and keeps their order.
    """
    sent, small = [], []
    for gradient, variable in zip(gradients, variables, strict=True):
        is_small = False
        if isinstance(gradient, tf.IndexedSlices):
            shape = tf.TensorShape(variable.shape)
            dense_shape = tf.constant(shape.as_list())
            gradient = tf.IndexedSlices(gradient.values, gradient.indices, dense_shape)
            is_small = shape.num_elements() * gradient.dtype.size <= _SMALL_TABLE
        sent.append(_table(gradient) if is_small else gradient)
        small.append(gradient if is_small else None)
    return [
        total if gradient is None else _rows_of_table(total, gradient)
        for total, gradient in zip(reduce(sent), small, strict=True)
    ]


def gathered(
    gradient: tf.IndexedSlices, rows: tf.Tensor, gather: Callable[[tf.Tensor], tf.Tensor]
) -> tf.IndexedSlices:
    """Gathers the rows of all replicas in one operation.

    Args:
      gradient: the gradient of this replica.
      rows: the number of rows to send, at least those of the gradient; a scalar.
      gather: concatenates the tensors of all replicas along the first dimension.
    """
    missing = [[0, rows - tf.size(gradient.indices)]]
    indices = tf.pad(gradient.indices, missing, constant_values=-1)
    if indices.dtype.size < gradient.values.dtype.size:
        indices = tf.cast(indices, tf.int64)
    values = tf.pad(_matrix(gradient.values), [*missing, [0, 0]])
    columns = tf.shape(values)[1]
    # The bits of the indices are those of more columns.
    bits = tf.bitcast(indices, values.dtype)
    found = gather(tf.concat([values, _matrix(bits)], 1))
    found_bits = tf.reshape(found[:, columns:], [-1, *bits.shape[1:]])
    indices = tf.bitcast(found_bits, indices.dtype)
    present = indices >= 0
    return tf.IndexedSlices(
        _rows_like(tf.boolean_mask(found[:, :columns], present), gradient),
        tf.cast(tf.boolean_mask(indices, present), gradient.indices.dtype),
        gradient.dense_shape,
    )


def rows_or_table(
    gradient: tf.IndexedSlices,
    rows: tf.Tensor,
    *,
    gather: Callable[[], tf.IndexedSlices],
    reduce: Callable[[tf.Tensor], tf.Tensor],
) -> tf.IndexedSlices:
    """Reduces a gradient over all replicas, in the way that sends fewer bytes.

    In rings of N replicas, a replica sends (N - 1) / N of the rows that are gathered from all of
    them, and twice as much of a table that is summed.

    Args:
      gradient: the gradient of this replica, with its `dense_shape`.
      rows: the number of rows that are gathered from all replicas; a scalar, equal in all.
      gather: gathers the rows.
      reduce: reduces a table.
    """

    def as_table() -> tf.IndexedSlices:
        return _rows_of_table(reduce(_table(gradient)), gradient)

    table = 2 * tf.cast(gradient.dense_shape[0], tf.float32)
    found = tf.cond(tf.cast(rows, tf.float32) < table, gather, as_table)
    return tf.IndexedSlices(found.values, found.indices, gradient.dense_shape)


def _sum(launcher: Any, gradient: tf.IndexedSlices, options: Any) -> tf.IndexedSlices:
    """The sum over the replicas of a gradient with distinct indices.

    Args:
      launcher: TensorFlow's launcher of collective operations on one replica.
      gradient: the gradient of the replica.
      options: TensorFlow's options of the communication.
    """
    replicas = launcher._group_size
    with tf.device(launcher._device):
        counts = launcher._all_gather(tf.shape(gradient.indices), options)
        most = tf.reduce_max(counts)
        gather = partial(gathered, gradient, most, partial(launcher._all_gather, options=options))
        # Two replicas never have more rows than two tables.
        if replicas <= 2:
            return gather()
        reduce = partial(launcher.all_reduce, options=options)
        return rows_or_table(gradient, most * replicas, gather=gather, reduce=reduce)


def _matrix(rows: tf.Tensor) -> tf.Tensor:
    width = rows.shape[1:].num_elements()
    return tf.reshape(rows, [tf.shape(rows)[0], width])


def _rows_like(matrix: tf.Tensor, gradient: tf.IndexedSlices) -> tf.Tensor:
    return tf.reshape(matrix, [tf.shape(matrix)[0], *gradient.values.shape[1:]])


def _table(gradient: tf.IndexedSlices) -> tf.Tensor:
    """The dense gradient of the table, with a last column that counts the rows of each index."""
    values = _matrix(gradient.values)
    ones = tf.ones([tf.shape(values)[0], 1], values.dtype)
    rows = tf.cast(gradient.dense_shape[0], tf.int32)
    return tf.math.unsorted_segment_sum(tf.concat([values, ones], 1), gradient.indices, rows)


def _rows_of_table(table: tf.Tensor, gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    indices = tf.where(table[:, -1] > 0)[:, 0]
    return tf.IndexedSlices(
        _rows_like(tf.gather(table[:, :-1], indices), gradient),
        tf.cast(indices, gradient.indices.dtype),
        gradient.dense_shape,
    )
