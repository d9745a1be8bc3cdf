"""Runs one call of a model part by part over a batch, and computes its gradient.

TensorFlow's tape forgets the devices of the operations that it differentiates. So the tape records
a call as one operation. `tf.gradients` computes its gradient, and colocates the operations of the
gradient with those of the call. A `tf.custom_gradient` would send all weights and all gradients to
one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from tfdist.errors import UsageError
from tfdist.strategies.in_graph import lanes
from tfdist.strategies.in_graph.batches import Parts
from tfdist.strategies.in_graph.gradient_sums import total
from tfdist.strategies.in_graph.lanes import Lane
from tfdist.strategies.in_graph.pipeline import Pipeline, Replica
from tfdist.upstream import autograph


def call_in_parts(pipeline: Pipeline, call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method `call` of a model, so that it runs in the parts of a pipeline."""

    def call_model(inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return _call(pipeline, autograph.converted(call), inputs, args, kwargs)

    return call_model


@tf.autograph.experimental.do_not_convert
def _call(
    pipeline: Pipeline,
    call: Callable[..., Any],
    inputs: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    # A call outside of a function has no graph to place.
    if tf.executing_eagerly():
        return call(inputs, *args, **kwargs)

    def call_with(batch: Any) -> Any:
        values, masks = batch
        return call(values, *args, **{**kwargs, **masks})

    # Of the arguments, the mask has a row for each example, too.
    masks = {name: kwargs[name] for name in kwargs if name == "mask"}
    return ModelCall(pipeline, call_with, (inputs, masks)).run()


class ModelCall:
    """A call of the model on a batch, in a graph.

    Args:
      pipeline: the pipeline of the model.
      call: calls the model on a part; takes the structure of `batch`.
      batch: tensors whose first dimension is that of the examples, and None.
    """

    def __init__(self, pipeline: Pipeline, call: Callable[[Any], Any], batch: Any) -> None:
        self._pipeline = pipeline
        self._options = pipeline.options
        self._grid = pipeline.grid
        self._call = call
        self._batch = batch

    def run(self) -> Any:
        """Returns the model's output for the batch."""
        inputs = [value for value in tf.nest.flatten(self._batch) if value is not None]
        # Not within `stop_recording`, so that the tape watches the variables.
        self._replicas = list(map(self._replica, range(self._grid.num_replicas)))
        with record.stop_recording():
            outputs = self._forward(inputs)
        handles = [variable.handle for variable, _ in self._pipeline.weights]
        record.record_operation("in_graph", outputs, [*inputs, *handles], self._backward)
        for output, mask in zip(outputs, self._masks, strict=True):
            if mask is not None:
                output._keras_mask = mask
        return tf.nest.pack_sequence_as(self._structure, outputs)

    def _forward(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        with tf.device(self._grid.client):
            self._parts = Parts(inputs, self._grid.num_replicas * self._options.microbatches)
            split = [self._parts.split(value) for value in inputs]
        self._inputs = list(zip(*split, strict=True))
        self._outputs = []
        for part in range(len(self._inputs)):
            self._structure = outputs = self._call_part(part)
            self._outputs.append(tf.nest.flatten(outputs))
        by_output = list(zip(*self._outputs, strict=True))
        with tf.device(self._grid.client):
            self._masks = [self._merged_masks(of_parts) for of_parts in by_output]
            return [self._parts.merge(of_parts) for of_parts in by_output]

    def _backward(self, *gradients: tf.Tensor) -> list[Any]:
        """The gradients of the inputs and of the weights."""
        if record.could_possibly_record():
            # The tape has not recorded what the model has computed.
            raise UsageError(
                "train_step",
                received="a gradient of a gradient of the model",
                accepted="gradients computed after the blocks of all GradientTapes",
                remedy="Use another strategy.",
            )
        with tf.device(self._grid.client):
            split = list(zip(*map(self._parts.split_gradient, gradients), strict=True))
        weights = self._pipeline.weights
        of_inputs: list[Sequence[Any]] = [()] * len(split)
        of_replicas: list[list[Any]] = [[None for _ in weights] for _ in self._replicas]
        for part in self._parts_to_differentiate():
            replica = self._replica_of(part)
            of_inputs[part], found = self._gradients(part, split[part])
            sums = of_replicas[replica]
            for index, (_, stage) in enumerate(weights):
                # Adding them at the end would need the memory of all of them.
                with tf.device(self._grid.device(replica, stage)):
                    sums[index] = total([sums[index], *found[index]])
        totals = []
        for (_, stage), *of_weight in zip(weights, *of_replicas, strict=True):
            with tf.device(self._grid.device(0, stage)):
                totals.append(total(of_weight))
        with tf.device(self._grid.client):
            merged = [
                None if None in of_parts else self._parts.merge(of_parts)
                for of_parts in zip(*of_inputs, strict=True)
            ]
        return [*merged, *totals]

    def _call_part(self, part: int) -> Any:
        with self._pipeline.within(self._replicas[self._replica_of(part)]):
            return self._call(self._packed(self._inputs[part]))

    def _parts_to_differentiate(self) -> Iterator[int]:
        """Yields the parts from last to first, because the stages have just computed the last."""
        parts = reversed(range(len(self._inputs)))
        if not self._options.recompute:
            yield from parts
            return
        orders = [lanes.OneForwardOneBackward(replica.lanes) for replica in self._replicas]
        for part in parts:
            order = orders[self._replica_of(part)]
            order.begin_call()
            self._outputs[part] = tf.nest.flatten(self._call_part(part))
            order.begin_gradient()
            yield part
            order.end_gradient()

    def _gradients(
        self, part: int, gradients: Sequence[tf.Tensor]
    ) -> tuple[Sequence[Any], list[list[Any]]]:
        """The gradients of a part.

        Args:
          part: the index of the part.
          gradients: the gradients of its outputs.

        Returns:
          The gradients of its inputs, None for those that have none; and the list of the gradients
          of each weight.
        """
        replica, weights = self._replicas[self._replica_of(part)], self._pipeline.weights
        outputs, begun = [], []
        for output, gradient in zip(self._outputs[part], gradients, strict=True):
            if output.dtype.is_floating or output.dtype.is_complex:
                outputs.append(output)
                source = lanes.producer(output, replica.lanes)
                begun.append(gradient if source is None else source.begin([gradient])[0])
        variables = [variable for variable, _ in weights]
        found = tf.compat.v1.gradients(
            outputs,
            # A layer that gathers rows of a weight has read them from the variable.
            [*replica.weights, *variables, *self._inputs[part]],
            begun,
            stop_gradients=replica.weights,
            colocate_gradients_with_ops=True,
        )
        of_values, of_rows = found[: len(weights)], found[len(weights) : 2 * len(weights)]
        of_weights = [
            [gradient for gradient in both if gradient is not None]
            for both in zip(of_values, of_rows, strict=True)
        ]
        for stage, lane in enumerate(replica.lanes):
            own = zip(weights, of_values, strict=True)
            lane.end([g for (_, place), g in own if place == stage and g is not None])
        return found[2 * len(weights) :], of_weights

    def _replica_of(self, part: int) -> int:
        return part // self._options.microbatches

    def _replica(self, index: int) -> Replica:
        """A replica, with one transfer for each weight, however many parts there are."""
        stages = [Lane(self._grid.device(index, stage)) for stage in range(self._grid.num_stages)]
        weights = []
        for variable, stage in self._pipeline.weights:
            with tf.device(stages[stage].device):
                weights.append(tf.identity(variable.read_value()))
        return Replica(stages, weights)

    def _packed(self, part: Sequence[tf.Tensor]) -> Any:
        left = iter(part)
        flat = [None if v is None else next(left) for v in tf.nest.flatten(self._batch)]
        return tf.nest.pack_sequence_as(self._batch, flat)

    def _merged_masks(self, outputs: Sequence[Any]) -> tf.Tensor | None:
        masks = [getattr(output, "_keras_mask", None) for output in outputs]
        return None if any(mask is None for mask in masks) else self._parts.merge(masks)
