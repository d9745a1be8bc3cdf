"""Lets `BatchNormalization(synchronized=True)` reduce its statistics over ranks.

    reduce_over_ranks(model, collectives.sum)

The layer calls TensorFlow's all-reduce of a replica, which returns its argument in a rank, because
each rank trains outside of a `tf.distribute.Strategy`. Keras 3's optimizers call it, too, so it is
replaced only while such a layer computes its statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.replaced import replace, replaced

Sum = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]


def reduce_over_ranks(model: Any, sum_of: Sum) -> None:
    """Changes the synchronized layers of a model; a second call changes nothing.

    Args:
      model: a Keras model.
      sum_of: sums tensors over all ranks; its gradient is the sum of the gradients.
    """
    for layer in tf.train.TrackableView(model).descendants():
        if getattr(layer, "synchronized", None) is True and "_moments" not in vars(layer):
            replace(layer, "_moments", _reducing(layer._moments, sum_of))


def _reducing(moments: Callable[..., Any], sum_of: Sum) -> Callable[..., Any]:
    @tf.autograph.experimental.do_not_convert
    def call(*args: Any, **options: Any) -> Any:
        def all_reduce(context: Any, reduce_op: Any, value: tf.Tensor) -> tf.Tensor:
            return sum_of([value])[0]

        with replaced(tf.distribute.ReplicaContext, "all_reduce", all_reduce):
            return moments(*args, **options)

    return call
