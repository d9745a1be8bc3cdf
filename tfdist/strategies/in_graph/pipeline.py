"""Runs a model on several workers within one TensorFlow function: in replicas, and in stages.

A call of the model splits its batch into one part for each replica and micro-batch. A layer runs
on the worker of its stage, and so does its gradient. The gradient of the batch is the sum of those
of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.config.strategies.rows import InGraphOptions
from tfdist.strategies.in_graph import lanes
from tfdist.strategies.in_graph.grid import Grid
from tfdist.strategies.in_graph.lanes import Lane
from tfdist.strategies.in_graph.stage_devices import following_inputs
from tfdist.strategies.in_graph.variables import reading

# A layer and its gradients run in the same way with and without AutoGraph.
_not_converted = tf.autograph.experimental.do_not_convert


@dataclass
class _Part:
    """A part of a batch on its way through a replica.

    Attributes:
      lanes: the stages of the replica.
      results: by stage that the part has reached, what its last layer so far has computed.
    """

    lanes: Sequence[Lane]
    results: dict[int, list[tf.Tensor]] = field(default_factory=dict)


class Pipeline:
    """Runs the layers of one model in their stages, and wraps the calls of layers.

    `model_call.call_in_parts` wraps the call of the model.

    Args:
      grid: the workers.
      weights: the trainable variables, with the stage of each.
      options: the options of the strategy.
    """

    def __init__(
        self, grid: Grid, weights: Sequence[tuple[tf.Variable, int]], options: InGraphOptions
    ) -> None:
        self.grid = grid
        self.weights = weights
        self.options = options
        self._part: _Part | None = None

    def call_of_layer(self, call: Callable[..., Any], stage: int) -> Callable[..., Any]:
        """Wraps the method `call` of a layer."""

        def call_in_stage(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._enter(stage, (args, kwargs))
            with self._on(stage):
                outputs = call(*args, **kwargs)
            self._leave(stage, outputs)
            return outputs

        return call_in_stage

    @contextmanager
    def within(self, stages: Sequence[Lane], weights: Sequence[tf.Tensor]) -> Iterator[None]:
        """Runs the calls in this block as those of a part.

        Args:
          stages: the stages of the part's replica.
          weights: the values of the trainable variables in this replica.
        """
        with ExitStack() as stack:
            variables = [variable for variable, _ in self.weights]
            stack.enter_context(reading(zip(variables, weights, strict=True)))
            self._part = part = _Part(stages)
            stack.callback(setattr, self, "_part", None)
            ranks = {lane.device: stage for stage, lane in enumerate(stages)}
            stack.enter_context(tf.compat.v1.device(following_inputs(ranks)))
            yield
        for stage, results in part.results.items():
            stages[stage].end(results)

    @_not_converted
    def _enter(self, stage: int, arguments: Any) -> Any:
        if self._part is None or stage in self._part.results:
            return arguments
        flat = tf.nest.flatten(arguments)
        values = [value for value in flat if isinstance(value, tf.Tensor)]
        stages = self._part.lanes
        begun = iter(lanes.begin_call(values, stages[stage], stages))
        flat = [next(begun) if isinstance(value, tf.Tensor) else value for value in flat]
        return tf.nest.pack_sequence_as(arguments, flat)

    @_not_converted
    def _on(self, stage: int) -> AbstractContextManager[Any]:
        if self._part is None:
            return nullcontext()
        device: AbstractContextManager[Any] = tf.device(self._part.lanes[stage].device)
        return device

    @_not_converted
    def _leave(self, stage: int, outputs: Any) -> None:
        if self._part is not None:
            results = [value for value in tf.nest.flatten(outputs) if isinstance(value, tf.Tensor)]
            self._part.results[stage] = results
