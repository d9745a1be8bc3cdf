"""Makes `tf.distribute.Strategy.reduce` accept two kinds of values that Keras 3 passes to it.

class Strategy(ReducesForKeras3, tf.distribute.MultiWorkerMirroredStrategy): …
"""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.upstream import keras3_loss


class ReducesForKeras3:
    """Mixin for a `tf.distribute.Strategy` that Keras 3 calls; also applies `keras3_loss`.

    Keras 3 calls `reduce` with two kinds of values that TensorFlow does not support:

    - A nested batch, whose size can differ between replicas. Keras only needs its shapes and
      dtypes, so the result is the batch of this task's first replica.
    - The metrics of a step, which can be scalars, with an axis. The result is their mean over the
      replicas.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if keras_compat.is_keras_3(tf.keras.Model):
            keras3_loss.apply()

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        if reduce_op == "MEAN" and _is_of_keras(inspect.currentframe()):
            if isinstance(value, dict | list | tuple):
                return tf.nest.map_structure(
                    lambda part: self.experimental_local_results(part)[0],  # type: ignore[attr-defined]
                    value,
                )
            axis = None
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]


def _is_of_keras(frame: FrameType | None) -> bool:
    """Whether Keras has called the function of a frame."""
    caller = frame.f_back if frame is not None else None
    return caller is not None and str(caller.f_globals.get("__name__")).startswith("keras.")
