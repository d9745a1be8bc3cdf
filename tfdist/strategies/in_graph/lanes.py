"""Orders the parts of a batch within a stage, as in GPipe (Huang et al. 2019, arXiv:1811.06965).

A stage first calls its layers on each part, and then computes the gradient of each part. Without
this order TensorFlow begins all parts at once, and the next stage waits for all of them. If the
parts are computed again for their gradients, `OneForwardOneBackward` orders that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf


class Lane:
    """One stage of one replica. It runs one piece of work at a time, in order.

    A piece of work is the call, or the gradient, of the layers of the stage on a part of a batch.

    Args:
      device: the device of the stage.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._is_working = False
        #: The operations that the next piece of work waits for; by default, the last piece.
        self.before: list[tf.Operation] = []

    def begin(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Passes values to the stage when its previous piece of work has ended.

        The gradients of a stage with several outputs begin with the first of them.
        """
        with self._on_device():
            if not self._is_working:
                with tf.control_dependencies([*values, *self.before]):
                    self.before = [tf.no_op()]
                self._is_working = True
            with tf.control_dependencies(self.before):
                return [tf.identity(value) for value in values]

    def end(self, results: Sequence[tf.Tensor]) -> None:
        """Ends the piece of work that computes `results`, if the stage has begun one."""
        if self._is_working:
            with self._on_device(), tf.control_dependencies([*results, *self.before]):
                self.before = [tf.no_op()]
            self._is_working = False

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        # Gradients are colocated with other operations, which takes precedence over a device.
        graph = tf.compat.v1.get_default_graph()
        with graph.colocate_with(None, ignore_existing=True), tf.device(self.device):
            yield


class OneForwardOneBackward:
    """Orders the calls and the gradients of parts, as PipeDream does (Narayanan et al. 2019).

    Stage s of S stages begins the call on a part when it has ended the gradient of the part that
    is S - s parts before. So it has the activations of at most S - s parts. The gradients of a
    stage follow each other.

    Args:
      stages: all stages of a replica, which have ended the calls of the first pass.
    """

    def __init__(self, stages: Sequence[Lane]) -> None:
        self._stages = stages
        # By stage: the end of the last call, and those of all gradients.
        self._called = [lane.before for lane in stages]
        self._gradients = [[lane.before] for lane in stages]

    def begin_call(self) -> None:
        """Call this before adding the layers' calls on a part to the graph."""
        for stage, lane in enumerate(self._stages):
            ended = self._gradients[stage]
            place = len(ended) - (len(self._stages) - stage)
            lane.before = [*self._called[stage], *(ended[place] if place >= 0 else ())]

    def begin_gradient(self) -> None:
        """Call this before adding the gradient of the part to the graph."""
        for stage, lane in enumerate(self._stages):
            self._called[stage], lane.before = lane.before, self._gradients[stage][-1]

    def end_gradient(self) -> None:
        """Call this after adding the gradient of the part to the graph."""
        for ended, lane in zip(self._gradients, self._stages, strict=True):
            ended.append(lane.before)


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
