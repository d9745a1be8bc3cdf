"""A Keras model whose variables and calls are split over the workers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from tfdist.compat import keras as keras_compat
from tfdist.strategies.in_graph.grid import Grid
from tfdist.strategies.in_graph.model_call import call_in_parts
from tfdist.strategies.in_graph.pipeline import Pipeline
from tfdist.strategies.in_graph.stage_devices import following_inputs
from tfdist.strategies.in_graph.stages import Stage
from tfdist.strategies.in_graph.variables import move, tensorflow_variable


class SplitModel:
    """Splits a built model in place.

    Args:
      model: a `tf.keras.Model`.
      grid: the workers.
      stages: the layers of each stage.
      microbatches: the number of parts into which a replica divides its batch.
      recompute: whether each part is computed again for its gradient.

    Attributes:
      model: the model.
      stages: the layers of each stage.
    """

    def __init__(
        self,
        model: Any,
        grid: Grid,
        stages: Sequence[Stage],
        microbatches: int,
        *,
        recompute: bool = False,
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
        pipeline = Pipeline(grid, microbatches, weights, recompute=recompute)
        self._trainable = _trainable(model)
        self._calls: list[tuple[Any, str, Any]] = [
            (model, "call", call_in_parts(pipeline, model.call)),
            (model, "train_step", self._train_step(model.train_step)),
            *(
                (layer, "call", pipeline.call_of_layer(layer.call, index))
                for index, stage in enumerate(stages)
                for layer in stage.layers
            ),
        ]
        self._replace()
        self._forget_functions()

    def is_of(self, model: Any) -> bool:
        """Whether this is the given model, with the same trainable variables as before."""
        return self.model is model and self._trainable == _trainable(model)

    def undo(self) -> None:
        """Gives the model and its layers their own methods; the variables stay where they are."""
        self._restore()
        self._forget_functions()

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Within the block, the model and its layers have their own methods."""
        self._restore()
        try:
            yield
        finally:
            self._replace()

    def _restore(self) -> None:
        for made_by_keras, name, _ in self._calls:
            del vars(made_by_keras)[name]

    def _forget_functions(self) -> None:
        # Functions that were traced before call the layers where they were.
        self.model.train_function = self.model.test_function = None
        self.model.predict_function = None

    def _replace(self) -> None:
        # Keras would track the attributes of an assignment.
        for made_by_keras, name, method in self._calls:
            vars(made_by_keras)[name] = method

    def _train_step(self, train_step: Any) -> Any:
        """Wraps `train_step`: what follows from the variables, as their updates, runs with them."""
        grid = self._grid
        owners = {grid.device(0, stage): stage for stage in range(grid.num_stages)}

        @functools.wraps(train_step)
        def step(data: Any) -> Any:
            with tf.compat.v1.device(following_inputs(owners)):
                return train_step(data)

        return step


def _trainable(model: Any) -> set[Any]:
    return {tensorflow_variable(variable).ref() for variable in model.trainable_variables}
