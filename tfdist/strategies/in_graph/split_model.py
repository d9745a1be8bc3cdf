"""A Keras model whose variables and calls are split over the workers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.compat.replaced import at_end, replace, replaced
from tfdist.config.strategies.rows import InGraphOptions
from tfdist.strategies.in_graph.grid import Grid
from tfdist.strategies.in_graph.model_call import call_in_parts
from tfdist.strategies.in_graph.pipeline import Pipeline
from tfdist.strategies.in_graph.stage_devices import following_inputs
from tfdist.strategies.in_graph.stages import Stage
from tfdist.strategies.in_graph.variables import move, tensorflow_variable


class SplitModel:
    """Moves the variables of a built model to the workers; `apply` then splits its calls.

    Args:
      model: a `tf.keras.Model`.
      grid: the workers.
      stages: the layers of each stage.
      options: the options of the strategy.

    Attributes:
      model: the model.
      stages: the layers of each stage.
    """

    def __init__(
        self, model: Any, grid: Grid, stages: Sequence[Stage], options: InGraphOptions
    ) -> None:
        self.model = model
        self.stages = tuple(stages)
        self._grid = grid
        stage_of = {
            tensorflow_variable(variable).ref(): index
            for index, stage in enumerate(stages)
            for variable in stage.variables
        }
        weights = []
        for variable in keras_compat.without_vocabularies(model.variables):
            own = tensorflow_variable(variable)
            stage = stage_of.get(own.ref(), 0)
            move(own, grid.device(0, stage))
            if variable.trainable:
                weights.append((own, stage))
        self.pipeline = pipeline = Pipeline(grid, weights, options)
        self._trainable = _trainable(model)
        self._calls: list[tuple[Any, Any]] = [
            (model, call_in_parts(pipeline, model.call)),
            *(
                (layer, pipeline.call_of_layer(layer.call, index))
                for index, stage in enumerate(stages)
                for layer in stage.layers
            ),
        ]
        self._replaced = ExitStack()

    def is_of(self, model: Any) -> bool:
        """Whether `model` is the split model, with the same trainable variables as before."""
        return self.model is model and self._trainable == _trainable(model)

    def apply(self) -> None:
        """Splits the calls of the model and its layers until the training or evaluation ends.

        The variables stay on the workers after that.
        """
        _, split_call = self._calls[0]
        if vars(self.model).get("call") is split_call:
            return
        at_end(self._replaced.close)
        replace(self.model, "train_step", self._train_step(self.model.train_step))
        self._replace()

    @contextmanager
    def undone(self) -> Iterator[None]:
        """In this block, the model and its layers have their original `call` methods."""
        self._replaced.close()
        try:
            yield
        finally:
            self._replace()

    def _replace(self) -> None:
        for made_by_keras, call in self._calls:
            self._replaced.enter_context(replaced(made_by_keras, "call", call))

    def _train_step(self, train_step: Any) -> Any:
        """Wraps `train_step` to run operations on variables, such as updates, on their devices."""
        grid = self._grid
        owners = {grid.device(0, stage): stage for stage in range(grid.num_stages)}

        @functools.wraps(train_step)
        def step(data: Any) -> Any:
            with tf.compat.v1.device(following_inputs(owners)):
                return train_step(data)

        return step


def _trainable(model: Any) -> set[Any]:
    return {tensorflow_variable(variable).ref() for variable in model.trainable_variables}
