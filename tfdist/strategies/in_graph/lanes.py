"""Orders the parts of a batch within a stage, as in GPipe (Huang et al. 2019, arXiv:1811.06965).

A stage first calls its layers on each part, and then computes the gradient of each part. Without
this order TensorFlow begins all parts at once, and the next stage waits for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf


@dataclass
class Lane:
    """One stage of one replica: what it has to finish before it begins the next part.

    Attributes:
      device: the device of the stage.
      called: the results of the last part.
      differentiated: the gradients of the last part.
    """

    device: str
    called: list[tf.Operation] = field(default_factory=list)
    differentiated: list[tf.Operation] = field(default_factory=list)


def begin(value: tf.Tensor, lane: Lane, stages: Sequence[Lane]) -> tf.Tensor:
    """Passes a value to a stage when the stage has finished the last part.

    The gradient of the value goes back to the stage that has computed it, under the same condition.

    Args:
      value: the first input of the stage.
      lane: the stage.
      stages: all stages of the replica.
    """
    source = producer(value, stages)

    def forward(value: tf.Tensor) -> tf.Tensor:
        with tf.device(lane.device), tf.control_dependencies(lane.called):
            return tf.identity(value)

    if source is None or not value.dtype.is_floating:
        return forward(value)

    @tf.custom_gradient
    def both(value: tf.Tensor) -> tf.Tensor:
        return forward(value), lambda gradient: begin_gradient(gradient, source)

    return both(value)


def begin_gradient(gradient: tf.Tensor, lane: Lane | None) -> tf.Tensor:
    """Passes a gradient to a stage when the stage has finished the gradients of the last part."""
    if lane is None:
        return gradient
    with tf.device(lane.device), tf.control_dependencies(lane.differentiated):
        return tf.identity(gradient)


def producer(value: tf.Tensor, stages: Sequence[Lane]) -> Lane | None:
    """The stage that has computed a value; None if no stage has, as for an input of the model."""
    return next((stage for stage in stages if stage.device == value.device), None)
