"""Makes `tf.distribute.Strategy.reduce` accept the metrics of a step, as Keras 3 passes them.

class Strategy(ReducesForKeras3, tf.distribute.MultiWorkerMirroredStrategy): …
"""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.upstream import keras3_loss, keras3_symbolic_build


class ReducesForKeras3:
    """Mixin for a `tf.distribute.Strategy` that Keras 3 calls; also applies `keras3_loss` and
    `keras3_symbolic_build`.

    Keras 3 calls `reduce` with the metrics of a step, which can be scalars, and an axis, which
    TensorFlow does not support. The result is their mean over the replicas.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if keras_compat.is_keras_3(tf.keras.Model):
            keras3_loss.apply()
            keras3_symbolic_build.apply()

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        if reduce_op == "MEAN" and _is_of_keras(inspect.currentframe()):
            axis = None
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]


def _is_of_keras(frame: FrameType | None) -> bool:
    """Whether Keras has called the function of a frame."""
    caller = frame.f_back if frame is not None else None
    return caller is not None and str(caller.f_globals.get("__name__")).startswith("keras.")
