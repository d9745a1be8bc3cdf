"""Runs a model on several workers in one TensorFlow function, split into replicas and stages.

A call of the model splits its batch into one part for each replica and micro-batch. A layer runs
on the worker of its stage, and so does its gradient. The gradient of the batch is the sum of those
of the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.config.strategies.rows import InGraphOptions
from tfdist.strategies.in_graph import lanes
from tfdist.strategies.in_graph.grid import Grid
from tfdist.strategies.in_graph.lanes import Lane
from tfdist.strategies.in_graph.stage_devices import following_inputs
from tfdist.strategies.in_graph.variables import reading
from tfdist.upstream import autograph


@dataclass(frozen=True)
class Replica:
    """A replica of the model in one step.

    Attributes:
      lanes: its stages.
      weights: its values of the trainable variables.
    """

    lanes: Sequence[Lane]
    weights: Sequence[tf.Tensor]


@dataclass(eq=False)
class Pipeline:
    """Runs each layer of a model on the device of its stage, by wrapping the calls of layers.

    `model_call.call_in_parts` wraps the call of the model.

    Args:
      grid: the workers.
      weights: the trainable variables, with the stage of each.
      options: the options of the strategy.
    """

    grid: Grid
    weights: Sequence[tuple[tf.Variable, int]]
    options: InGraphOptions
    # The replica of the part of a batch that is called; and for each stage that the part has
    # reached, the outputs of the last layer that was run there.
    _replica: Replica | None = None
    _results: dict[int, list[tf.Tensor]] = field(default_factory=dict)

    @property
    def is_in_part(self) -> bool:
        """Whether a part of a batch is being called."""
        return self._replica is not None

    def call_of_layer(self, call: Callable[..., Any], stage: int) -> Callable[..., Any]:
        """Wraps the method `call` of a layer."""

        def call_in_stage(*args: Any, **kwargs: Any) -> Any:
            return self._call(stage, autograph.converted(call), args, kwargs)

        return call_in_stage

    @contextmanager
    def within(self, replica: Replica) -> Iterator[None]:
        """Runs the calls in this block as those of a part of the batch of a replica."""
        with ExitStack() as stack:
            variables = [variable for variable, _ in self.weights]
            stack.enter_context(reading(zip(variables, replica.weights, strict=True)))
            self._replica, self._results = replica, {}
            stack.callback(setattr, self, "_replica", None)
            ranks = {lane.device: stage for stage, lane in enumerate(replica.lanes)}
            stack.enter_context(tf.compat.v1.device(following_inputs(ranks)))
            yield
        for stage, results in self._results.items():
            replica.lanes[stage].end(results)

    @tf.autograph.experimental.do_not_convert
    def _call(
        self,
        stage: int,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if self._replica is None:
            return call(*args, **kwargs)
        stages = self._replica.lanes
        if stage not in self._results:
            args, kwargs = _begun((args, kwargs), stages[stage], stages)
        with tf.device(stages[stage].device):
            outputs = call(*args, **kwargs)
        self._results[stage] = _tensors(outputs)
        return outputs


def _begun(arguments: Any, lane: Lane, stages: Sequence[Lane]) -> Any:
    """The arguments of the first layer of a stage, when the stage begins its calls."""
    begun = iter(lanes.begin_call(_tensors(arguments), lane, stages))
    return tf.nest.map_structure(
        lambda value: next(begun) if isinstance(value, tf.Tensor) else value, arguments
    )


def _tensors(values: Any) -> list[tf.Tensor]:
    return [value for value in tf.nest.flatten(values) if isinstance(value, tf.Tensor)]
