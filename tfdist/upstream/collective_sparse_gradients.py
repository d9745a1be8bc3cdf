"""Lets the sparse gradients of an Estimator's replicas have different numbers of rows.

apply()     # before the graph of a model function is built

In a graph of TensorFlow 1, a collective operation must have the same shape in each step: it has one
key for all steps, and TensorFlow keeps the shape with the key. The rows of a feature column's
gradient are the different values in the batch. TensorFlow pads them to the same length in all
replicas, but to another one in each step. Here, such a gradient is made dense.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.cross_device_utils import CollectiveReplicaLauncher


def apply() -> None:
    """Changes TensorFlow's class; a second call changes nothing."""
    gather = CollectiveReplicaLauncher.all_reduce_indexed_slices
    if gather.__module__ == __name__:
        return

    def all_reduce_indexed_slices(
        self: Any, input_slices: tf.IndexedSlices, options: Any = None
    ) -> tf.IndexedSlices:
        is_static = input_slices.values.shape[0] is not None
        if tf.compat.v1.executing_eagerly_outside_functions() or is_static:
            return gather(self, input_slices, options)
        total = self.all_reduce(tf.convert_to_tensor(input_slices), options=options)
        rows = tf.range(tf.shape(total, input_slices.indices.dtype)[0])
        return tf.IndexedSlices(total, rows, input_slices.dense_shape)

    CollectiveReplicaLauncher.all_reduce_indexed_slices = all_reduce_indexed_slices
