"""Orders the parts of a batch within a stage, as in GPipe (Huang et al. 2019, arXiv:1811.06965).

A stage first calls its layers on each part, and then computes the gradient of each part. Without
this order TensorFlow begins all parts at once, and the next stage waits for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from tfdist.strategies.in_graph.idle import Clock


class Lane:
    """One stage of one replica, which does one piece of work after the other.

    A piece of work is the call, or the gradient, of the layers of the stage on a part of a batch.

    Args:
      device: the device of the stage.
      clock: measures the work; None if it is not measured.
    """

    def __init__(self, device: str, clock: Clock | None) -> None:
        self.device = device
        self._clock = clock
        self._is_working = False
        # What has to end before the next piece of work begins.
        self._before: list[tf.Operation] = []

    def begin(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Passes values to the stage when it has ended the piece of work before.

        The gradients of a stage with several outputs begin with the first of them.
        """
        with self._on_device():
            if not self._is_working:
                with tf.control_dependencies([*values, *self._before]):
                    self._before = [tf.no_op() if self._clock is None else self._clock.begin()]
                self._is_working = True
            with tf.control_dependencies(self._before):
                return [tf.identity(value) for value in values]

    def end(self, results: Sequence[tf.Tensor]) -> None:
        """Ends the piece of work that computes `results`, if the stage has begun one."""
        if self._is_working:
            with self._on_device(), tf.control_dependencies([*results, *self._before]):
                self._before = [tf.no_op() if self._clock is None else self._clock.end()]
            self._is_working = False

    def end_step(self, stages: Sequence[Lane]) -> None:
        """Ends a step when all stages have ended their work."""
        if self._clock is not None:
            last = [operation for lane in stages for operation in lane._before]
            with self._on_device(), tf.control_dependencies(last):
                self._clock.end_step()

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        # Gradients are colocated with other operations, which takes precedence over a device.
        graph = tf.compat.v1.get_default_graph()
        with graph.colocate_with(None, ignore_existing=True), tf.device(self.device):
            yield


def begin_call(values: Sequence[tf.Tensor], lane: Lane, stages: Sequence[Lane]) -> list[tf.Tensor]:
    """Begins the calls of the layers of a stage.

    The gradient of a value begins the gradients of the stage that has computed it.

    Args:
      values: the inputs of the first layer of the stage.
      lane: the stage.
      stages: all stages of the replica.
    """
    sources = [producer(value, stages) for value in values]

    def backward(*gradients: tf.Tensor | None) -> list[tf.Tensor | None]:
        return [
            gradient
            if source is None or gradient is None  # The gradient of a mask.
            else source.begin([gradient])[0]
            for source, gradient in zip(sources, gradients, strict=True)
        ]

    begin = tf.custom_gradient(lambda *values: (lane.begin(values), backward))
    return list(begin(*values))


def producer(value: tf.Tensor, stages: Sequence[Lane]) -> Lane | None:
    """The stage that has computed a value; None if no stage has, as for an input of the model."""
    return next((stage for stage in stages if stage.device == value.device), None)
