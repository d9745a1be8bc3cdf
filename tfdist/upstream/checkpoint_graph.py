"""Reads the object graph of a checkpoint; TensorFlow's API lists only the names of tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

#: The name of the tensor that describes the objects.
KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
#: The name of the value of a variable.
VARIABLE = "VARIABLE_VALUE"

#: A variable in parts, which a checkpoint has as one tensor.
ShardedVariable: Any = tf.__internal__.distribute.ShardedVariable


def nodes_of(graph: bytes) -> Any:
    """The objects of a checkpoint, with their children and values, as protocol buffers.

    Args:
      graph: the tensor `KEY` of the checkpoint.
    """
    return TrackableObjectGraph.FromString(graph).nodes
