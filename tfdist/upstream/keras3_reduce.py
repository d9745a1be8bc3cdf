"""`tf.distribute.Strategy.reduce` for the two values with which Keras 3 calls it.

class Strategy(ReducesForKeras3, tf.distribute.MultiWorkerMirroredStrategy): …
"""

from __future__ import annotations

import sys
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.upstream import keras3_loss


class ReducesForKeras3:
    """For a `tf.distribute.Strategy`: it does for Keras 3 what that leaves out.

    `reduce` takes two things that Keras 3 gives it; of all others TensorFlow is to judge.

    A batch is nested, and may be of another size in each replica. Keras wants to know its shapes
    and dtypes alone: each part becomes what it is in this task's first replica. And of the metrics
    of a step, which may be scalars, it asks the mean over the first dimension: it gets that over
    the replicas.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if keras_compat.is_keras_3(tf.keras.Model):
            keras3_loss.apply()

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if reduce_op == "MEAN" and caller.startswith("keras."):
            if isinstance(value, dict | list | tuple):
                return tf.nest.map_structure(
                    lambda part: self.experimental_local_results(part)[0],  # type: ignore[attr-defined]
                    value,
                )
            axis = None
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]
