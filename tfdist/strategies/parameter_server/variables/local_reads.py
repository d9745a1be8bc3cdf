"""Reads each weight once for several batches of a step.

with reading_once(model.trainable_variables):
    …                                # functions and loops, whose reads use the same tensors

TensorFlow sends a weight from its ps to the worker for each operation in a loop that reads it.
Rows of a table that a layer gathers are not read as a whole, and are sent for each batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record, tape

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import all_replaced
from tfdist.upstream.wrapped_variables import innermost


@contextmanager
def reading_once(weights: Iterable[Any]) -> Iterator[None]:
    """In this block, the current graph reads each weight once and reuses the value.

    Args:
      weights: Keras's or TensorFlow's variables.
    """
    variables = list(map(innermost, keras_compat.as_tensorflow(weights)))
    # TensorFlow leaves out the reads that nothing uses.
    values = [variable.value() for variable in variables]
    pairs = zip(variables, values, strict=True)
    with all_replaced((each, "value", partial(_read, each, value)) for each, value in pairs):
        yield


def _read(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    read = tf.identity(value)
    tape.variable_accessed(variable)
    # As TensorFlow's own reads: for a tape, the result follows from the variable.
    record.record_operation("ReadVariableOp", [read], [variable.handle], lambda *grads: [*grads])
    return read
